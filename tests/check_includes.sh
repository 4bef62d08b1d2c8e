#!/usr/bin/env bash
# Holds what files include to tests/floors.def: data flows one way, core names none of the parts
# that register with it, and examples, bench, modes and nn see public headers only. And how long
# lines are.
set -euo pipefail
cd "${1:-$(dirname "$(readlink -f "$0")")/..}"
status=0

# "folder target": each folder that a folder's files include headers of, and where.
includes() {
    grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[^"]*/' core guards jit backends tracer \
        transforms opcheck nn modes export start examples bench --include='*.[ch]' --include='*.def' --include='*.inc' |
        sed -nE 's|^(.*)/([^/]+:[0-9]+):.*"(.*)/[^/"]+".*|\1 \3 \1/\2|p'
}

while read -r from to where; do
    [ ! -d "$to" ] || echo "$from $to $where"
done < <(includes) | awk '
    function row_of(dir) { while (!(dir in may) && sub(/\/[^\/]*$/, "", dir)) continue; return dir }
    function allowed(from, to, i, n, names) {
        if (from == to || may[from] ~ /(^| )any$/) return 1
        n = split(may[from], names, " ")
        for (i = 1; i <= n; i++) if (to == names[i] || index(to, names[i] "/") == 1) return 1
        return 0
    }
    FNR == NR { if (!/^#/ && sub(/:/, "")) { name = $1; $1 = ""; may[name] = $0 } next }
    { from = row_of($1); to = row_of($2) ? row_of($2) : $2
      if (!allowed(from, to)) { print $3 ": " from " must not include headers of " $2; bad = 1 } }
    END { exit bad }' tests/floors.def - || status=1

# Public headers come in angle brackets, from include/etch alone.
if grep -rnE '#[[:space:]]*include[[:space:]]*"' include --include='*.h'; then
    echo "include: public headers include <etch/...> and system headers only"
    status=1
fi
# The library has one constructor.
if grep -rnE '__attribute__\(\(constructor' core guards jit backends tracer transforms opcheck nn modes export; then
    echo "parts start by a row in core/base/parts.def"
    status=1
fi
# Lines fit 100 columns.
while read -r place; do
    echo "$place: a line of more than 100 columns"
    status=1
done < <(find include core guards jit opcheck backends tracer transforms nn modes export start examples bench \
    tools tests \( -name '*.c' -o -name '*.h' \) -exec awk 'length > 100 { print FILENAME ":" FNR }' {} + \
    2>/dev/null)
[ $status -eq 0 ] && echo "include rules: ok"
exit $status
