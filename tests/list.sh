#!/usr/bin/env bash
# What the suites are about: the first paragraph of each file, or with a NAME the tests of the suites
# whose names have it in them (./run test --list [NAME]).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

# paragraph FILE: its first comment, up to an empty line of it, without the comment's marks.
paragraph() {
    sed -n '/^#!/d; /^#$/q; /^ \*$/q; /^[^#\/ ]/q; /^$/q; p; /\*\/$/q' "$1" |
        sed 's/^#* *//; s/^\/\* //; s/^ *\* //; s/ \*\/$//; s/^/    /'
}

for file in test_*.c check_*.sh; do
    name=$(basename "${file%.*}")
    [[ ${name#*_} == *${1:-}* ]] || continue
    echo "${name#*_}"
    if [ $# -eq 0 ]; then paragraph "$file"
    elif [ -x "../build/tests/$name" ]; then "../build/tests/$name" --list | sed 's/^/    /'; fi
done
