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
show "interceptors: modes, custom operators and etch_compile" interceptors
show "dispatcher: the layers that one call passes" dispatcher
show "hooks: one interception as a mode, a module hook and a kernel override" hooks
[ $failed -eq 0 ] || { echo "demo: FAILED"; exit 1; }
echo "demo: ok"
