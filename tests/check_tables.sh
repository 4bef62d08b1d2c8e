#!/bin/sh
# Every test that the tables of required outcomes in README.md name is there.
cd "$(dirname "$0")" || exit 1
missing=$(sed -n '/^## Required outcomes$/,/^## Reported/p' README.md | grep '^|' | cut -d'|' -f3 |
    grep -o '`[^`]*`' | tr -d '`' | sed 's/^[a-z_]*: //; s/\*.*//' | sort -u |
    while read -r name; do
        [ -z "$name" ] || grep -qF -- "$name" test_*.c || echo "$name"
    done)
[ -z "$missing" ] && exit 0
echo "README.md names tests that are not there:"
echo "$missing"
exit 1
