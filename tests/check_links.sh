#!/usr/bin/env bash
# Holds the objects of a build to tests/floors.def: check_links.sh BUILD. A symbol that an object
# takes from a floor that it may not use is printed, and so are cycles of folders, and cycles of
# more than three objects inside a folder. What registers itself (core/base/parts.def) is called
# through tables and so is no arrow.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
build=$1
objects=$build/CMakeFiles/etch_objects.dir

# symbols: "object T|U symbol" of each object, named as its source without the suffix.
symbols() {
    find "$objects" "$build/CMakeFiles/etch_avx2.dir" -name '*.o' | while read -r object; do
        source=${object#*.dir/}
        # Objects of sources that are gone may still lie in the folder.
        [[ ! -f ${source%.o} && $source != *generated/* ]] || echo "$object"
    done | xargs nm -A --format=posix | awk '{
            sub(/:$/, "", $1); sub(/^.*\.dir\//, "", $1); sub(/\.c\.o$/, "", $1)
            sub(/^.*generated\//, "core/dispatch/", $1) # the functions of core/ops/ops.def
            if ($3 == "U") print $1, "U", $2
            else if ($3 ~ /^[TDBRVWC]$/) print $1, "T", $2 }'
}

symbols | awk -f tests/check_links.awk tests/floors.def -
