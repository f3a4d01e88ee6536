#!/bin/sh
# By pkg-config, with PKG_CONFIG_PATH from `anyfuse acl-config --pkg-config`.
set -e
cc -std=c99 main.c $(pkg-config --cflags --libs anyfuse) -o plain
./plain
