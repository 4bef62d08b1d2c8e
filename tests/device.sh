#!/usr/bin/env bash
# The suites with their tensors on a device: ./run test --device DEVICE. Which ones, their labels say
# (the first comment of test_NAME.c):
#   device     operators and semantics
#   kernels    those of them with most kernels, ten thousand, which are compiled on the CPU
#   driver     the CUDA backend's own, which else run on the fakes
#   sanitizer  what compute-sanitizer runs of them; it slows calls down by hundreds of times
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

say() { printf '== %s\n' "$*"; }

# labelled LABEL...: the suites that have all of them.
labelled() {
    local file label labels
    for file in tests/test_*.c; do
        labels=" $(sed -n 's/.*Labels: \([a-z ]*\)\..*/\1/p' "$file" | head -n 1) "
        for label in "$@"; do [[ $labels == *" $label "* ]] || continue 2; done
        basename "$file" .c | sed 's/^test_//'
    done
}

# ---- CTest ----

# device_ctest SUITES_AT_ONCE PROCESSES_OF_EACH LABEL CTEST-ARGUMENT...
device_ctest() {
    local parallel=$1 jobs=$2 label=$3
    shift 3
    ETCH_TEST_JOBS=$jobs ctest --test-dir build --output-on-failure --timeout 1800 \
        --parallel "$parallel" --no-tests=ignore -L "^$label\$" "$@"
}

# on_real_gpu COMMAND...: a suite of the backend's own.
on_real_gpu() { ETCH_TEST_DEVICE='' ETCH_TEST_REAL_GPU=1 "$@"; }

# The programs that a user sees, on the device.
run_programs() {
    local status=0 name
    say "examples and etch-verify on $device"
    tests/check_interceptors.sh build/examples/interceptors "$device" || status=1
    build/examples/digits_pca examples/data/digits.csv.gz --device "$device" || status=1
    build/tools/verify/etch-verify --device "$device" | tail -n 1
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    say "the backend's own suites on the real driver"
    for name in $(labelled driver); do
        on_real_gpu "build/tests/test_$name" | tail -n 1
        [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    done
    return $status
}

# Kernels first, in a process for each processor; of the others several at once.
run_suites() {
    local status=0 n at_once each
    n=$(nproc)
    at_once=$((n < 8 ? 1 : n / 4)) each=$((n < 8 ? n : 8))
    if [ $# -gt 0 ]; then
        device_ctest "$at_once" "$each" '(device|kernels)' "$@"
        return
    fi
    device_ctest 1 "$n" kernels || status=1
    device_ctest "$at_once" "$each" device || status=1
    run_programs || status=1
    return $status
}

# ---- compute-sanitizer ----

# judged TOOL NAME COMMAND...: whether it found nothing; TOOL none: whether the suite passes.
judged() {
    local tool=$1 name=$2 log=build/sanitizer-$1-$2.log with=()
    shift 2
    [ "$tool" = none ] || with=(timeout "${ETCH_SANITIZER_SECONDS:-900}" compute-sanitizer
        --tool "$tool" --target-processes all --error-exitcode 9)
    if "${with[@]}" "$@" >"$log" 2>&1; then
        say "$tool: $name: clean"
    else
        say "$tool: $name: FAILED, see $log"
        grep -m 20 -E '=========|ERROR|LINE' "$log" || tail -n 20 "$log"
        : >build/sanitizer-failed
    fi
}

# pooled COMMAND...: in the background, once there are less than two processes a processor.
pooled() {
    while (($(jobs -rp | wc -l) >= 2 * $(nproc))); do wait -n || true; done
    "$@" &
}

# dealt TOOL NAME PROCESSES STEP [WRAPPER]: every STEP-th share of a suite, in processes that take turns
# with the GPUs.
dealt() {
    local tool=$1 name=$2 processes=$3 step=$4 part gpus
    gpus=$({ nvidia-smi -L 2>/dev/null || true; } | wc -l)
    for ((part = 0; part < processes; part++)); do
        ETCH_TEST_PART=$((part * step))/$((processes * step)) \
            CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-$((gpus ? part % gpus : 0))} \
            pooled ${5:-} judged "$tool" "$name-$part" "build/tests/test_$name"
    done
}

# every_job TOOL: all shares of the suites with most kernels, or for a look every
# ETCH_SANITIZER_SHARE-th. initcheck not of cuda_faults, which reads results of kernels that failed and
# so wrote nothing.
every_job() {
    local name
    for name in $(labelled sanitizer device); do dealt "$1" "$name" 4 1; done
    for name in $(labelled sanitizer driver); do
        [ "$1-$name" = initcheck-cuda_faults ] || dealt "$1" "$name" 8 1 on_real_gpu
    done
    for name in $(labelled sanitizer kernels); do
        dealt "$1" "$name" $((2 * $(nproc))) "${ETCH_SANITIZER_SHARE:-1}"
    done
    wait
}

# Each job first without a tool: the kernels come from the cache then, and the tools make NVRTC slow as
# well.
run_sanitizers() {
    local tool
    rm -f build/sanitizer-failed
    for tool in none ${1//,/ }; do every_job "$tool"; done
    [ ! -e build/sanitizer-failed ]
}

# ---- main: DEVICE [--compute-sanitizer TOOLS] [CTEST-ARGUMENT...] ----

device=$1 tools=
shift
if [ "${1:-}" = --compute-sanitizer ]; then
    tools=${2:-}
    [ -n "$tools" ] || { say "--compute-sanitizer needs tools, such as memcheck,racecheck"; exit 1; }
    command -v compute-sanitizer >/dev/null || { say "compute-sanitizer is not in PATH"; exit 1; }
    shift 2
fi
export ETCH_TEST_DEVICE=$device
export ETCH_CACHE_DIR=${ETCH_TEST_CACHE:-$PWD/build/test-cache-device} # on a fast disk, best
export ETCH_CACHE_SIZE=${ETCH_CACHE_SIZE:-4000000000} # all kernels of all suites
if ! line=$(ETCH_TEST_DEVICE_ASK=1 build/tests/test_seed); then
    say "$line"
    exit 0
fi
say "testing build on $device"
if [ -n "$tools" ]; then run_sanitizers "$tools"; else run_suites "$@"; fi
