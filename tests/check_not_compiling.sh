#!/usr/bin/env bash
# What the headers must refuse at compile time, beside what is like it and must compile, in C and C++.
# check_not_compiling.sh INCLUDE-FOLDER...
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=()
for folder in "$@"; do flags+=("-I$folder"); done

# compiles EXPRESSION COMPILER...: as an operand of the type etch_scalar.
compiles() {
    local expression=$1
    shift
    printf '#include <etch/etch.h>\nstruct bits { unsigned b : 3; };\nenum names { FIRST };\n%s\n' \
        "etch_scalar number(etch_tensor *t, const char *s, int *p, short h, struct bits f, size_t n);
etch_scalar number(etch_tensor *t, const char *s, int *p, short h, struct bits f, size_t n) {
    (void)t, (void)s, (void)p, (void)h, (void)f, (void)n;
    return ETCH_SCALAR($expression);
}" >"$work/program.c"
    "$@" -Wall -Wextra -Werror "${flags[@]}" -c -o "$work/program.o" "$work/program.c" 2>"$work/log"
}

wrong=0
for compiler in "cc -std=c11" "c++ -std=c++17 -x c++"; do
    for number in 1 2.5 2.5f 2.5L "'a'" h f.b n FIRST "h > 1" "etch_scalar_int(3)" 3ul 3ull; do
        # shellcheck disable=SC2086
        compiles "$number" $compiler || { echo "$compiler: $number: $(cat "$work/log")"; wrong=1; }
    done
    for pointer in t s p "&n" NULL '"text"' number "(void *)p"; do
        # shellcheck disable=SC2086
        if compiles "$pointer" $compiler; then echo "$compiler takes $pointer as a number"; wrong=1; fi
    done
done
exit $wrong
