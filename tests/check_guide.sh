#!/usr/bin/env bash
# The programs of docs/guide.md and of the README: each is built without a warning by the command that
# the guide gives, in a folder that looks like a clone, runs, and prints what stands behind it. A
# program's first line names its file. Behind it stands what it prints without a GPU, and where that differs, what it
# prints with one (`text cuda`), which is asked with the fakes of the CUDA libraries.
# check_guide.sh BUILD-DIRECTORY [FAKES-DIRECTORY]
set -euo pipefail
source_dir=$(dirname "$(dirname "$(readlink -f "$0")")")
build_dir=$(readlink -f "$1")
fakes=${2:-}
documents=("$source_dir/README.md" "$source_dir/docs/guide.md")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset "${!ETCH_@}"
export ETCH_CACHE_DIR=$work/cache
ln -s "$source_dir/include" "$work/include"
ln -s "$build_dir" "$work/build"
cd "$work"

# NAME.c, NAME.text and NAME.cuda for each program, and the list of their names, in their order.
awk '
    /^```c$/ { to = ""; program = 1; next }
    /^```text( cuda)?$/ { to = name (NF > 1 ? ".cuda" : ".text"); printf "" >to; next }
    /^```/ { program = 0; to = ""; next }
    program && !to {
        name = $2
        if ($1 != "/*" || !sub(/\.c:$/, "", name)) { print FILENAME ":" FNR ": no name"; exit 1 }
        print name >"names"
        to = name ".c"
    }
    to { print >to }
' "${documents[@]}"
command=$(sed -n 's/^cc .* first\.c .*/&/p' "${documents[@]}")
[ "$(wc -l <<<"$command")" -eq 1 ] && [ -s names ] ||
    { echo "no programs, or not one command that builds them"; exit 1; }

# same NAME KIND OUTPUT
same() {
    diff -u --label "the document: $1.c" "$1.$2" --label "what it printed" "$3" && return
    echo "$1: prints something else"
    return 1
}

on_fakes() {
    ETCH_CUDA_DRIVER=$fakes/libfake_cuda.so ETCH_CUDA_NVRTC=$fakes/libfake_nvrtc.so \
        ETCH_CUDA_CUBLASLT=$fakes/libfake_cublaslt.so "$@"
}

status=0
while read -r name; do
    eval "${command//first/$name} -Wall -Wextra -Werror"
    ETCH_CUDA=0 "./$name" >"$name.out" 2>&1 || { echo "$name: exit status $?"; status=1; }
    same "$name" text "$name.out" || status=1
    if [ -e "$name.cuda" ] && [ -n "$fakes" ]; then
        on_fakes "./$name" >"$name.out" 2>&1 || { echo "$name: exit status $?"; status=1; }
        same "$name" cuda "$name.out" || status=1
    fi
done <names
[ $status -eq 0 ] && echo "guide: ok ($(wc -l <names) programs)"
exit $status
