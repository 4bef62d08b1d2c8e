#!/usr/bin/env bash
# Exported functions where libgccjit is not there: check_export.sh BUILD [OTHER].
# OTHER is a build with ETCH_GCCJIT=OFF, which loads what BUILD writes. Without it, BUILD itself does,
# in a mount namespace in which neither libgccjit nor etch-jit can be opened; and Python does, if it
# is there. 77: no such namespace can be made here.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
build=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ETCH_CACHE_DIR=$work/cache

"$build/tests/test_export" --write "$work" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }

if [ $# -gt 1 ]; then
    ETCH_EXPORT_FILES=$work "$2/tests/test_export" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    echo "export without libgccjit: ok"
    exit 0
fi

# by_python: a file of one argument, its result the same as that of eager code.
by_python() {
    local got
    got=$(ETCH_JIT=/nonexistent python3 "$here/../examples/export.py" "$build/libetch.so" \
        "$work/cnn.etch" 16 1 8 8) || { echo "python: $got"; exit 1; }
    [ "$(head -n 1 <<<"$got")" = "f32[16, 10]" ] || { echo "python: got $got"; exit 1; }
    echo "python: ok"
}
if python3 -c 'import ctypes' 2>/dev/null && [ -f "$build/libetch.so" ]; then by_python; fi

unshare -rm true 2>/dev/null || { echo "no mount namespaces here"; exit 77; }
# What is hidden is what the helper loads, so a library in an unusual place is found as well.
helper=$(find "$build" -name etch-jit -type f)
jit=$(ldd "$helper" | awk '/libgccjit/ { print $3 }')
[ -f "$jit" ] || { echo "no libgccjit that $helper loads"; exit 1; }
jit=$(readlink -f "$jit")
# hidden COMMAND: runs it where the two are empty files that nobody may read or run.
hidden() {
    unshare -rm bash -c '
        for file in "$1" "$2"; do mount --bind /dev/null "$file"; done
        shift 2
        exec "$@"' hidden "$jit" "$helper" "$@"
}
[ -s "$jit" ] && hidden test ! -s "$jit" || { echo "libgccjit is not hidden"; exit 1; }
if hidden "$helper" 2>/dev/null; then echo "etch-jit is not hidden"; exit 1; fi
for file in "$work"/*.etch; do
    name=$(basename "$file" .etch)
    ETCH_CACHE_SIZE=0 hidden "$build/tests/test_export" --child "$name" "$work" >"$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    echo "$name: ok"
done
