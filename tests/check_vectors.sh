#!/usr/bin/env bash
# check_vectors.sh TEST: runs test_vectors with a cache of its own; every kernel in it must do its
# arithmetic in vectors. Skipped, with a line, where objdump is not.
set -euo pipefail
command -v objdump >/dev/null || { echo "vectors: skipped: there is no objdump"; exit 0; }
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
ETCH_CACHE_DIR=$cache "$1" >/dev/null
status=0 found=0
for kernel in "$cache"/*.so; do
    [ -e "$kernel" ] || break
    found=$((found + 1))
    packed=$(objdump -d --no-show-raw-insn "$kernel" | grep -Ec '\sv?(add|mul)p[sd]') || true
    [ "$packed" -gt 0 ] && continue
    echo "vectors: no packed arithmetic in $(nm "$kernel" | grep ' T ' | head -n 1)"
    status=1
done
[ "$found" -ge 12 ] || { echo "vectors: $found kernels in the cache, not 12"; status=1; }
exit $status
