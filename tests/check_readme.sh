#!/usr/bin/env bash
# The tables of docs/environment.md are those of core/base/params.def and core/base/logs.def, row for row; those
# that the README shows are among them. The README stays short.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

# rows FILE MACRO: its rows as those of a table; each has to have a form that can be read here.
rows() {
    local text
    text=$(sed -nE "s/^$2\\([A-Z_]+, \"([^\"]*)\", \"([^\"]*)\"(, \"([^\"]*)\")?\\)\$/| \`\\1\` | \\2 | \\4 |/p" \
        "$1" | sed 's/ |  |$/ |/; s/|  |/| - |/')
    [ "$(grep -c "^$2(" "$1")" -eq "$(wc -l <<<"$text")" ] ||
        { echo "$1: a row that this check cannot read" >&2; return 1; }
    echo "$text"
}

# same TABLE-ROWS FILE PATTERN: the rows of FILE that fit are these.
same() {
    diff <(echo "$1") <(grep -E "$3" "$2") || { echo "$2: the table above differs"; exit 1; }
}

parameters=$(rows core/base/params.def PARAM)
channels=$(rows core/base/logs.def LOG)
same "$parameters" docs/environment.md '^\| `ETCH_'
same "$channels" docs/environment.md '^\| `[a-z_]+`'
if grep -E '^\| `ETCH_' README.md | grep -vxF -f <(echo "$parameters"); then
    echo "README.md: the rows above are not those of core/base/params.def"
    exit 1
fi
[ "$(grep -cE '^\| `ETCH_' README.md)" -eq 10 ] || { echo "README.md: not ten variables"; exit 1; }
[ "$(wc -l <README.md)" -le 200 ] || { echo "README.md: more than 200 lines"; exit 1; }
echo "README: ok"
