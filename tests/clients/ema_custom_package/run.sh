#!/bin/bash
# The environment of a custom operator's test, with its package among the libraries.
source $ASCEND_INSTALL_PATH/bin/setenv.bash
export DDK_PATH=$ASCEND_INSTALL_PATH
arch=$(uname -m)
export NPU_HOST_LIB=$ASCEND_INSTALL_PATH/${arch}-linux/lib64
export LD_LIBRARY_PATH=$ASCEND_INSTALL_PATH/${arch}-linux/lib64:$ASCEND_OPP_PATH/vendors/customize/op_api/lib:$LD_LIBRARY_PATH
rm -rf build output && mkdir -p build output && cd build
cmake .. -DCMAKE_CXX_COMPILER=g++ -DCMAKE_SKIP_RPATH=TRUE || exit 1
make || exit 1
cd ../output
./execute_ema_op || exit 1
