# Source this: the paths that programs written for a toolkit look for then point here.
_anyfuse_root="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"
export ASCEND_HOME_PATH="$_anyfuse_root"
export ASCEND_TOOLKIT_HOME="$_anyfuse_root"
export ASCEND_PATH="$_anyfuse_root"
export ASCEND_CUSTOM_PATH="$_anyfuse_root"
export ASCEND_OPP_PATH="$_anyfuse_root/opp"
export DDK_PATH="$_anyfuse_root"
export NPU_HOST_LIB="$_anyfuse_root/lib64"
export LD_LIBRARY_PATH="$_anyfuse_root/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset _anyfuse_root
