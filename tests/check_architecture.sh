#!/usr/bin/env bash
# The documents say what is there. Of docs/architecture.md: the files, functions and tests that hold
# each rule of the cursor, the folders and what they may include, the words of the glossary in the
# files that define them; comments cite rules that it has, and name it. Of all: links, and paths.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
page=docs/architecture.md
documents=(README.md CONTRIBUTING.md tests/README.md docs/*.md)
status=0
fault() {
    echo "$*"
    status=1
}

# quoted: what stands in `...`, a line each.
quoted() { grep -o '`[^`]*`' | tr -d '`' || true; }

# items KIND: the list items that begin with "- KIND:", each on one line.
items() {
    awk -v kind="- $1: " '
        function flush() { if (index(item, kind) == 1) print substr(item, length(kind) + 1) }
        /^- / { flush(); item = $0; next }
        /^  / && item { sub(/^ */, " "); item = item $0; next }
        { flush(); item = "" }
        END { flush() }' "$page"
}

# ---- rules: each file has the functions that follow it, each suite the tests ----

file=
while read -r name; do
    case $name in
        */*) file=$name ;;
        *) grep -qsw -- "$name" "$file" || fault "$page: $file has no $name" ;;
    esac
done < <(items code | quoted)

while read -r suite names; do
    for name in $(quoted <<<"$names"); do
        grep -qsF -- "${name%%\**}" "tests/test_$suite.c" ||
            fault "$page: tests/test_$suite.c has no test $name"
    done
done < <(items tests | sed 's/; */\n/g')

# Comments say "rule 7" and where the rules stand, tests are called rule7_something.
numbers=$(sed -nE 's/^### ([0-9]+)\. .*/\1/p' "$page")
while IFS=: read -r where line rule; do
    grep -qx "${rule//[^0-9]/}" <<<"$numbers" || fault "$where:$line: $page has no $rule"
    [[ $rule != *' '* ]] || grep -qF "$page" "$where" || fault "$where:$line: it does not name $page"
done < <(grep -rnoE '(\brule |\brule|test_rule)[0-9]+' core guards jit backends tracer tests/*.c)

# ---- folders: the rows of floors.def ----

diff <(grep -v '^#' tests/floors.def | sed 's/ *$//') \
    <(sed -nE 's/^\| `([a-z\/]+)\/` \| [^|]* \| ?([a-z\/ ]*)\|$/\1: \2/p' "$page" | sed 's/ *$//') ||
    fault "$page: folders are not those of tests/floors.def"

# ---- glossary ----

while IFS='|' read -r _ word _ file _; do
    word=$(xargs <<<"$word") file=$(tr -d ' `' <<<"$file")
    grep -qisE -- "${word// /[ _]}" "$file" || fault "$page: $file does not say \"$word\""
done < <(sed -n '/^## Glossary/,$p' "$page" | grep '^| [a-z]' | grep -v '^| word')

# ---- all documents: paths and links ----

# anchors FILE: its headings, as links name them.
anchors() {
    sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed "s/[^a-z0-9 _-]//g; s/ /-/g"
}

for document in "${documents[@]}"; do
    folder=$(dirname "$document")
    while read -r path; do
        compgen -G "$path" >/dev/null || fault "$document: there is no $path"
    done < <(grep -oE '(^|[ `(])(core|guards|jit|backends|tracer|modes|nn|include|tools|cmake)/[A-Za-z0-9_/*-]*(\.[a-z]+)?' \
        "$document" | tr -d ' `(' | grep -v '^include/etch/ops.h$' | sort -u)
    while IFS='#' read -r target anchor; do
        target=${target:+$folder/$target}
        [ -e "${target:-$document}" ] || { fault "$document: there is no $target"; continue; }
        [ -z "$anchor" ] || anchors "${target:-$document}" | grep -qxF -- "$anchor" ||
            fault "$document: ${target:-it} has no heading #$anchor"
    done < <(grep -oE '\]\([^):]+\)' "$document" | sed 's/^](//; s/)$//')
done

[ $status -eq 0 ] && echo "documents: ok"
exit $status
