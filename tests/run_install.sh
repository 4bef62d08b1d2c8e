#!/usr/bin/env bash
# Installs a build tree, moves the installed tree elsewhere, builds the user programs of
# tests/install against it (CMake and pkg-config, C and C++17, shared and static) and runs them.
# run_install.sh BUILD-DIRECTORY
set -euo pipefail
source_dir=$(dirname "$(readlink -f "$0")")
build_dir=$(readlink -f "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ETCH_CACHE_DIR=$work/cache

cmake --install "$build_dir" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/etch"
pc=$(dirname "$(find "$work/etch" -name etch.pc)")
lib=$(dirname "$pc")
export PKG_CONFIG_PATH=$pc
wanted=eager
if [ -n "$(find "$work/etch" -name etch-jit)" ]; then wanted=compiled; fi

# Public symbols only: the shared library exports every function of the headers and nothing else, the
# static one defines no name outside etch_ that could clash with a program's own.
nm -D --defined-only "$lib/libetch.so" | awk '$2 ~ /[TDRBVW]/ { print $3 }' | sort >"$work/exported"
if grep -vE '^(etch_[^_]|ETCH_)' "$work/exported"; then echo "symbols: exported by mistake"; exit 1; fi
for name in $(sed -nE 's/^ETCH_API .*[ *](etch_[a-z0-9_]+)\(.*/\1/p' "$work"/etch/include/etch/*.h); do
    grep -qx "$name" "$work/exported" || { echo "symbols: $name is declared, not defined"; exit 1; }
done
if nm -g --defined-only "$lib/libetch.a" | awk 'NF == 3 { print $3 }' | grep -vE '^(etch_|ETCH_)'; then
    echo "symbols: the static library defines names outside etch_"
    exit 1
fi
echo "symbols: ok ($(wc -l <"$work/exported") public)"

# check NAME PROGRAM [HELPER]: it prints the right sum, from a plan, from compiled code if it can be.
check() {
    local got
    got=$(LD_LIBRARY_PATH=$lib ETCH_JIT=${3:-} "$2") || { echo "$1: failed: $got"; exit 1; }
    [ "$got" = "28 planned $wanted" ] || { echo "$1: expected '28 planned $wanted', got '$got'"; exit 1; }
    echo "$1: ok"
}
# A program with the library in it has its own place; it names the helper.
helper=$(find "$work/etch" -name etch-jit)

c_flags=(-std=gnu11 -Wall -Wextra -Werror "$source_dir/install/user.c")
cxx_flags=(-std=c++17 -Wall -Wextra -Werror "$source_dir/install/user.cpp")
read -r -a shared <<<"$(pkg-config --cflags --libs etch)"
read -r -a static <<<"$(pkg-config --static --cflags --libs etch)"
static=("${static[@]/#-letch/-l:libetch.a}")
cc "${c_flags[@]}" "${shared[@]}" -o "$work/c_shared"
cc "${c_flags[@]}" "${static[@]}" -o "$work/c_static"
c++ "${cxx_flags[@]}" "${shared[@]}" -o "$work/cxx_shared"
c++ "${cxx_flags[@]}" "${static[@]}" -o "$work/cxx_static"
for language in c cxx; do
    check "pkg-config, $language, shared" "$work/${language}_shared"
    check "pkg-config, $language, static" "$work/${language}_static" "$helper"
done

for language in C CXX; do
    cmake -S "$source_dir/install" -B "$work/$language" -G Ninja "-DETCH_USER_LANGUAGE=$language" \
        "-DCMAKE_PREFIX_PATH=$work/etch" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    cmake --build "$work/$language" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    check "find_package, $language, shared" "$work/$language/user_shared"
    check "find_package, $language, static" "$work/$language/user_static" "$helper"
done

# The README's first program is complete: it compiles without warnings and runs.
awk '/^```c$/ { on = !seen; next } /^```$/ { seen = seen || on; on = 0 } on' "$source_dir/../README.md" >"$work/readme.c"
cc -std=gnu11 -Wall -Wextra -Werror "$work/readme.c" "${shared[@]}" -o "$work/readme"
LD_LIBRARY_PATH=$lib "$work/readme" >"$work/readme.out"
[ -s "$work/readme.out" ] || { echo "README: the program printed nothing"; exit 1; }
echo "README: ok"
