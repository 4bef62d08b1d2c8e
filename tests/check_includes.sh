#!/usr/bin/env bash
# Checks which folder includes which against the table of the architecture: data flows one way, core
# names none of the parts that register with it, and examples, bench, modes and nn see public headers
# only. And how long lines are.
set -euo pipefail
cd "${1:-$(dirname "$(readlink -f "$0")")/..}"

# folder: the folders whose headers it may include, beside its own and the public ones.
rules='
include:
core:
guards: core
jit: core
backends: core jit
tracer: core guards
opcheck: core
start: core
nn:
modes:
examples:
bench:
'
status=0
while IFS=: read -r folder allowed; do
    if [ -z "$folder" ] || [ ! -d "$folder" ]; then continue; fi
    while IFS=: read -r file line text; do
        path=$(sed -E 's/^[^"]*"([^"]+)".*/\1/' <<<"$text")
        case $path in
            */*) target=${path%%/*} ;;
            *) continue ;; # a header beside the file
        esac
        [ -d "$target" ] || continue
        case " $folder $allowed " in
            *" $target "*) ;;
            *)
                echo "$file:$line: $folder must not include \"$path\""
                status=1
                ;;
        esac
    done < <(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$folder" \
        --include='*.c' --include='*.h' --include='*.def' --include='*.inc' || true)
done <<<"$rules"
# Public headers come in angle brackets, from include/etch alone.
if grep -rnE '#[[:space:]]*include[[:space:]]*"' include --include='*.h'; then
    echo "include: public headers include <etch/...> and system headers only"
    status=1
fi
# Lines fit 100 columns.
while read -r place; do
    echo "$place: a line of more than 100 columns"
    status=1
done < <(find include core guards jit opcheck start backends tracer nn modes examples bench tools tests \
    \( -name '*.c' -o -name '*.h' \) -exec awk 'length > 100 { print FILENAME ":" FNR }' {} + \
    2>/dev/null)
[ $status -eq 0 ] && echo "include rules: ok"
exit $status
