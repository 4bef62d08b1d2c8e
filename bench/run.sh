#!/usr/bin/env bash
# ./run bench sweep: bench/sweep.c. ./run bench: the benchmark's CSV, then that of the cursor program,
# which is built against an installed tree, as a user's program is. --callgrind: instructions of the
# latter only.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

if [ "${1:-}" = sweep ]; then exec build/bench/etch_bench "$@"; fi
cmake --install build --prefix build/prefix >/dev/null
pc=$(dirname "$(find build/prefix -name etch.pc)")
# shellcheck disable=SC2046
PKG_CONFIG_PATH=$pc cc -std=gnu11 -O2 -o build/etch_cursor bench/cursor.c \
    $(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs etch) \
    "-Wl,-rpath,$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir etch)"
[ "${1:-}" != --callgrind ] || exec bench/callgrind.sh build/etch_cursor
build/bench/etch_bench "$@"
build/etch_cursor "$@"
