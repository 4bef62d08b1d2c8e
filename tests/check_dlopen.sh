#!/usr/bin/env bash
# libetch where nobody linked it: static thread-locals, a C program (dlopen/host.c), Python's ctypes.
# check_dlopen.sh tls|python LIBRARY. 77: there is no Python (the suite is skipped).
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
library=$2

case $1 in
tls) # The loader keeps 512 bytes for all libraries that come by dlopen.
    size=$(readelf -lW "$library" | awk '$1 == "TLS" { print $6 }')
    [ -n "$size" ] || { echo "tls: no TLS segment in $library"; exit 1; }
    ((size < 512)) || {
        echo "tls: expected less than 512 bytes of static thread-locals, got $((size)): move what is"
        echo "large or seldom used into a block (core/base/thread.h: thread_texts)"
        readelf -sW "$library" | awk '$4 == "TLS" { print "  " $3, $8 }' | sort -rn | head
        exit 1
    }
    readelf -dW "$library" | grep -q NODELETE || { echo "tls: $library lacks -z nodelete"; exit 1; }
    echo "tls: ok ($((size)) bytes)" ;;
python)
    python3 -c 'import ctypes, threading' 2>/dev/null || { echo "no python3"; exit 77; }
    export ETCH_CACHE_SIZE=0
    python3 "$here/dlopen/binding.py" "$library" ;;
*) exit 2 ;;
esac
