# Source this in a shell: the paths that programs written for a toolkit look for then point here.
_anyfuse_file="${BASH_SOURCE:-}"
if [ -n "${ZSH_VERSION:-}" ]; then eval '_anyfuse_file="${(%):-%x}"'; fi
if [ -z "$_anyfuse_file" ]; then # other shells do not tell the name of a file they read, but have it open
  for _anyfuse_link in "/proc/$(exec sh -c 'echo $PPID')/fd"/*; do
    _anyfuse_link="$(readlink "$_anyfuse_link" || true)"
    case "$_anyfuse_link" in */set_env.sh) _anyfuse_file="$_anyfuse_link" ;; esac
  done
fi
if [ -z "$_anyfuse_file" ]; then
  echo "set_env.sh: this shell does not tell where the file lies; source it from bash, zsh or dash" >&2
  return 1
fi
_anyfuse_root="$(cd "$(dirname "$_anyfuse_file")" && pwd)"
export ASCEND_HOME_PATH="$_anyfuse_root"
export ASCEND_TOOLKIT_HOME="$_anyfuse_root"
export ASCEND_INSTALL_PATH="$_anyfuse_root"
export ASCEND_PATH="$_anyfuse_root"
export ASCEND_CUSTOM_PATH="$_anyfuse_root"
export ASCEND_OPP_PATH="$_anyfuse_root/opp"
export DDK_PATH="$_anyfuse_root"
export NPU_HOST_LIB="$_anyfuse_root/lib64"
export LD_LIBRARY_PATH="$_anyfuse_root/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset _anyfuse_root _anyfuse_file _anyfuse_link
