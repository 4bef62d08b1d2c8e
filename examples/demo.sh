#!/usr/bin/env bash
# ./run demo: the example programs, eager beside compiled, on real input.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../build/examples"

PATH=$PWD:$PATH
failed=0
# show TITLE PROGRAM [ARGUMENT...]
show() {
    printf '== %s\n' "$1"
    shift
    "$@" || failed=1
}
show "seed: five rounds of mm, sin, mm, add, relu" seed
show "digits_pca: principal components of 1,797 handwritten digits" \
    digits_pca ../../examples/data/digits.csv.gz
show "digits: two models learn to read them, eagerly and as one compiled step (--epochs 50: in full)" \
    digits ../../examples/data/digits.csv.gz --epochs 20 --out digits.out
show "charlm: a transformer's first steps on this repository's own text (--steps 1000: until it can spell)" \
    charlm --steps 8 --twin 4 --sample 80 --out charlm.out ../../LICENSE ../../README.md ../../docs/*.md
show "interceptors: modes, custom operators and etch_compile" interceptors
show "dispatcher: the layers that one call passes" dispatcher
show "hooks: one interception as a mode, a module hook and a kernel override" hooks
show "export: a step of training goes on in a process without a compiler" \
    ./export ../../examples/data/digits.csv.gz # without ./ it is the shell's own
show "vmap: functions of one sample, mapped over batches, beside loops" \
    vmap ../../examples/data/digits.csv.gz
show "decode: a token at a time, with a cache written in place and one compiled function for all lengths" decode
[ $failed -eq 0 ] || { echo "demo: FAILED"; exit 1; }
echo "demo: ok"
