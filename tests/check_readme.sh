#!/usr/bin/env bash
# The README's table of environment variables is that of core/params.def, row for row.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
expected=$(sed -nE 's/^PARAM\([A-Z_]+, "([^"]*)", "([^"]*)", "([^"]*)"\)$/| `\1` | \2 | \3 |/p' \
    core/params.def | sed 's/|  |/| - |/')
actual=$(grep -E '^\| `ETCH_' README.md)
[ "$(grep -c '^PARAM(' core/params.def)" -eq "$(wc -l <<<"$expected")" ] ||
    { echo "core/params.def: a row that this check cannot read"; exit 1; }
diff <(echo "$expected") <(echo "$actual") || { echo "README.md: the table above differs"; exit 1; }
echo "README: ok"
