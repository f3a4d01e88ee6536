#!/bin/sh
# POSIX sh: the environment is read with a dot.
. "$ASCEND_INSTALL_PATH/set_env.sh" || exit 1
mkdir -p build && cd build || exit 1
cmake .. && make && ./sample
