#!/usr/bin/env bash
# ./run coverage: runs the suites (those that the CTest arguments choose) in a build that counts, and
# prints how much of each folder of the library they ran through: lines, and outcomes of branches.
# coverage.sh BUILD [CTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=$1
shift

find "$build" -name '*.gcda' -delete
ctest --test-dir "$build" --parallel "$(nproc)" "$@" >"$build/coverage.log" ||
    echo "coverage: suites failed, see $build/coverage.log"

# gcov says three lines a file: its name, lines, branches, each as "57.14% of 42".
find "$build" -name '*.gcda' -not -path '*/tests/*' -print0 |
    xargs -0 -r gcov --branch-probabilities --no-output --source-prefix "$PWD" 2>/dev/null |
    awk -F"[':%]" -v OFS='\t' '
        /^File/ { file = $2; folder = file; sub("/[^/]*$", "", folder) }
        /^Lines executed/ { split($3, n, " of "); hit = $2; count("lines") }
        /^Branches executed/ { count("-") }
        /^Taken at least once/ { count("branches") }
        function count(what, of) {
            of = $0
            sub(/.* of /, "", of)
            if (file ~ /^(\/|\.\.)|generated/ || what == "-") return
            of_all[folder, what] += of
            hits[folder, what] += of * $2 / 100
            folders[folder]
        }
        function share(folder, what) {
            if (!of_all[folder, what]) return "-"
            return sprintf("%.1f%%", 100 * hits[folder, what] / of_all[folder, what])
        }
        END {
            for (f in folders)
                print f, of_all[f, "lines"], share(f, "lines"), share(f, "branches") | "sort"
            close("sort")
        }' | column -t -N folder,lines,run,branches
