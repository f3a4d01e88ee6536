# Where run scripts of operator samples look for the environment.
source "$(dirname "${BASH_SOURCE[0]}")/../set_env.sh"
