#!/bin/bash
set -eu
source "$ASCEND_INSTALL_PATH/set_env.sh"
make -s
./adam
