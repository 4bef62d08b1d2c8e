#!/usr/bin/env bash
# Instructions an operator under the cursor, counted by valgrind --tool=callgrind: four walks of the
# cursor program; differences over calls and over lengths leave the operators alone.
# callgrind.sh CURSOR-PROGRAM
set -euo pipefail
command -v valgrind >/dev/null || { echo "callgrind.sh: install the package valgrind" >&2; exit 1; }
export ETCH_CPU_ISA=avx2 # valgrind knows no AVX-512

# instructions ROUNDS CALLS
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" --walk "$1" "$2" 2>&1 |
        sed -nE 's/.*Collected : ([0-9]+).*/\1/p'
}
program=$1
"$program" --walk 1 100 && "$program" --walk 21 100 # their kernels come from the cache then
short=$(($(instructions 1 1100) - $(instructions 1 100)))
long=$(($(instructions 21 1100) - $(instructions 21 100)))
awk -v short="$short" -v long="$long" 'BEGIN {
    printf "instructions an operator: %.1f\n", (long - short) / 1000 / 100
    printf "instructions a call beside its operators: %.0f\n", (short - (long - short) / 20) / 1000
}'
