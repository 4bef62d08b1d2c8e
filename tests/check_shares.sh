#!/bin/sh
# usage: check_shares.sh SUITE: a suite that ETCH_TEST_JOBS deals out to processes runs the tests that it
# runs as one, and each of two processes has some.
suite=$1
unset ETCH_TEST_PART
names() { grep -o 'RUN .*' "$1" | sort -u; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
ETCH_TEST_JOBS=1 "$suite" >"$dir/whole" 2>&1 || { cat "$dir/whole"; exit 1; }
ETCH_TEST_JOBS=2 "$suite" >"$dir/dealt" 2>&1 || { cat "$dir/dealt"; exit 1; }
names "$dir/whole" >"$dir/wanted"
names "$dir/dealt" >"$dir/came"
processes=$(grep -c Running "$dir/dealt")
[ "$processes" = 2 ] || { echo "$processes processes ran tests, not 2"; exit 1; }
[ -s "$dir/wanted" ] && diff "$dir/wanted" "$dir/came"
