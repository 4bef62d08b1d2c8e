#!/usr/bin/env bash
# check_interceptors.sh PROGRAM [DEVICE]: runs the example and asserts what its experiment must show,
# with compiling on and off, and that each profile holds the kinds of steps its try consists of.
set -euo pipefail
program=$1
device=${2:-cpu}
profiles=$(dirname "$(dirname "$program")")/profiles
status=0

fail() { echo "interceptors: $*"; status=1; }

# check NAME OUTPUT PATTERN...: one whole line for each pattern, in this order and no other.
check() {
    local name=$1 output=$2
    shift 2
    local lines pattern n=0
    mapfile -t lines < <(grep '^try' <<<"$output")
    [ ${#lines[@]} -eq $# ] || fail "$name: expected $# lines, got ${#lines[@]}"
    for pattern in "$@"; do
        [[ ${lines[n]:-} =~ ^$pattern$ ]] || fail "$name: expected '$pattern', got '${lines[n]:-}'"
        n=$((n + 1))
    done
}

# events TRY KIND: how many events of a kind the profile has.
events() { grep -c "\"cat\":\"$2\"" "$profiles/$1.json" || true; }
expect_events() {
    local got
    got=$(events "$1" "$2")
    [ "$got" -eq "$3" ] || fail "$1.json: expected $3 events of kind $2, got $got"
}

# On a device eager operators have kernels as well: files of the cache, events of the profile.
some='[1-9][0-9]*'
eager_files=0 eager_kernels=0
[ "$device" = cpu ] || eager_files=$some eager_kernels=30

check "compiling on" "$(ETCH_COMPILE_DISABLE= "$program" --device "$device")" \
    'try0 eager\+mode seen=25 replaced=10 outside=0' \
    'try1 aten\+compile graphs=1 intercepted=0 artifacts='"$some"' equal=bitwise' \
    'try2 custom-op\+compile graphs=1 opaque=10 artifacts='"$some"' equal=bitwise' \
    'try3 mode\+compile graphs=0 intercepted=25 replaced=10 artifacts='"$eager_files"' equal=bitwise' \
    'try4 mode\+fullgraph error=mode_active'
# Two profiled calls each: 10 products and 6 fused kernels; 10 custom operators and the same kernels;
# under the mode 10 custom operators and 15 single ones.
expect_events try0 operator 30
expect_events try0 custom 20
expect_events try1 product 20
expect_events try1 kernel 12
expect_events try1 operator 0
expect_events try2 custom 20
expect_events try2 kernel 12
expect_events try2 product 0
expect_events try3 operator 30
expect_events try3 custom 20
expect_events try3 kernel "$eager_kernels"

check "compiling off" "$(ETCH_COMPILE_DISABLE=1 "$program" --device "$device")" \
    'try0 eager\+mode seen=25 replaced=10 outside=0' \
    'try1 aten\+compile graphs=0 intercepted=0 artifacts='"$eager_files"' equal=bitwise' \
    'try2 custom-op\+compile graphs=0 opaque=10 artifacts='"$eager_files"' equal=bitwise' \
    'try3 mode\+compile graphs=0 intercepted=25 replaced=10 artifacts='"$eager_files"' equal=bitwise' \
    'try4 mode\+fullgraph error=ok'
exit $status
