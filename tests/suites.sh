# ./run test: builds what the chosen suites need, and runs them. Read by ./run, whose functions it uses.

# targets_of DIRECTORY CTEST-ARGUMENT...: what the chosen tests need, a line each; nothing: all.
targets_of() {
    local dir=$1 name targets=()
    shift
    [ $# -gt 0 ] || return 0
    while read -r name; do
        if [ "$name" = install ]; then targets+=(programs)
        elif [ -f "tests/test_$name.c" ]; then targets+=("test_$name" programs)
        elif [[ $name != include_rules && $name != plants && ! -f "tests/check_$name.sh" ]]; then
            return 0
        fi
    done < <(ctest --test-dir "$dir" -N "$@" | sed -nE 's/^ *Test +#[0-9]+: //p')
    printf '%s\n' "${targets[@]}" | sort -u
}

# cold_cache DIRECTORY: kernels are compiled anew. The cache is never the user's own.
cold_cache() {
    export ETCH_CACHE_DIR="$PWD/$1/test-cache"
    rm -rf "$ETCH_CACHE_DIR"
}

# plain_cache DIRECTORY: code of kernels has no instrumentation, so where suites of the plain build have
# run, others take their kernels, and the helper that is part of each kernel's key. Suites with a cache
# of their own compile with the helper of their build: loop has all that it can be asked for.
plain_cache() {
    if [ ! -d build/test-cache ]; then cold_cache "$1"; return; fi
    make_targets build etch-jit
    export ETCH_CACHE_DIR="$PWD/build/test-cache" ETCH_JIT="$PWD/build/jit/helper/etch-jit"
}

# run_suites DIRECTORY CACHE CTEST-ARGUMENT...: builds what they need. CACHE: plain_cache or cold_cache.
run_suites() {
    local dir=$1 cache=$2 targets
    shift 2
    mapfile -t targets < <(targets_of "$dir" "$@")
    make_targets "$dir" "${targets[@]}"
    "$cache" "$dir"
    say "testing $dir"
    ctest --test-dir "$dir" --output-on-failure --parallel "$(nproc)" "$@"
}

# A debug build: the verifiers of the IR and the checks of handles are on. Reports need lines and names
# (-g1), no more. Instrumented code makes gcc's flow-dependent warnings say things that are not so.
run_sanitized() {
    local list=${1:-} dir
    [ -n "$list" ] || die "--sanitize needs a list, such as address,undefined"
    shift
    case $list in
        address*) dir=build-asan ;;
        thread*) dir=build-tsan ;;
        *) dir=build-${list//,/-} ;;
    esac
    # libgccjit leaks by design; the helper process is the only one that links it.
    export LSAN_OPTIONS="suppressions=$PWD/tests/lsan.supp:print_suppressions=0"
    export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=0:allocator_may_return_null=1}"
    export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}"
    configure "$dir" "-DETCH_SANITIZE=$list" -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1 -g1" \
        "-DCMAKE_C_FLAGS=-Wno-format-truncation -Wno-maybe-uninitialized" \
        -DETCH_EXAMPLES=OFF -DETCH_BENCH=OFF
    run_suites "$dir" plain_cache "$@"
}

run_tests() {
    case ${1:-} in
        --list) tests/list.sh "${@:2}" ;;
        --sanitize) run_sanitized "${@:2}" ;;
        --device)
            [ -n "${2:-}" ] || die "--device needs a device, such as cuda"
            build build
            tests/device.sh "${@:2}"
            ;;
        --without-jit)
            # What is asked is whether it builds and runs, not how fast.
            configure build-nojit -DETCH_GCCJIT=OFF -DETCH_EXAMPLES=OFF -DETCH_BENCH=OFF \
                -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O1"
            run_suites build-nojit cold_cache "${@:2}"
            ;;
        *)
            configure build
            run_suites build cold_cache "$@"
            ;;
    esac
}
