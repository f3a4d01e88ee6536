#!/bin/bash
set -e
source $ASCEND_INSTALL_PATH/bin/setenv.bash
gcc -std=c99 main.c -I$ASCEND_INSTALL_PATH/runtime/include -L$ASCEND_INSTALL_PATH/runtime/lib64/stub \
    -lascendcl -ldl -Wno-pedantic -o plugin
export LD_LIBRARY_PATH=$ASCEND_INSTALL_PATH/runtime/lib64:$ASCEND_OPP_PATH/vendors/customize/op_api/lib:$LD_LIBRARY_PATH
./plugin
