// The same from C++17: etch_compile and etch_call are overloads there, and what they call is for all.
#include <etch/etch.h>
#include <cstdio>
#include <cstdlib>

static etch_tensor *twice_plus_one(etch_tensor *x) {
    etch_tensor *twice = etch_mul_scalar(x, ETCH_SCALAR(2.0));
    return etch_add_scalar(twice, ETCH_SCALAR(1));
}

static double by_overloads() {
    double value = 0;
    etch_compile_options options = {};
    options.fullgraph = true;
    etch_function *f = etch_compile(+[](etch_tensor *a, etch_tensor *b) { return etch_sub(a, b); },
                                    options);
    etch_function *off = etch_disable(ETCH_CALLABLE(twice_plus_one), false);
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(4), ETCH_SCALAR(3.0)), *y = nullptr;
        for (int i = 0; i < 2; i++)
            ETCH_SCOPE { etch_assign(&y, etch_call(off, x)); }
        value = etch_item(etch_sum(etch_call(f, y, x)));
    }
    etch_function_free(f);
    etch_function_free(off);
    return value;
}

// What a file of etch_export holds gives the same; -1 where it does not.
static double by_import(etch_function *f, const char *path) {
    double value = -1;
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(4), ETCH_SCALAR(3.0));
        etch_export_options options = {};
        options.struct_size = sizeof options;
        options.no_code = true;
        if (etch_export_with(f, &x, 1, path, &options) != ETCH_OK) return -1;
        etch_import_options how = {};
        how.struct_size = sizeof how;
        how.code = ETCH_CODE_EAGER;
        etch_imported *loaded = etch_import_with(path, &how);
        etch_tensor *y = etch_imported_call_one(loaded, &x, 1);
        if (y) value = etch_item(etch_sum(y));
        etch_imported_free(loaded);
    }
    std::remove(path);
    return value;
}

int main() {
    double value = 0;
    if (by_overloads() != 16) {
        std::fprintf(stderr, "overloads: %s\n", etch_last_error());
        return 1;
    }
    etch_counters_reset();
    etch_function *f = etch_compile_fn1(twice_plus_one, nullptr);
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(4), ETCH_SCALAR(3.0));
        etch_call_one(f, &x, 1); // recorded and compiled
        value = etch_item(etch_sum(etch_call_one(f, &x, 1)));
    }
    etch_counters_t c = etch_counters();
    std::printf("%g %s %s\n", value, c.plan_runs == 1 ? "planned" : "unplanned",
                c.kernel_launches > 0 ? "compiled" : "eager");
    char path[] = "etch-user-XXXXXX";
    if (mkstemp(path) < 0 || by_import(f, path) != 28) value = -1;
    if (value != 28) std::fprintf(stderr, "%s\n", etch_last_error());
    etch_function_free(f);
    return value == 28 ? 0 : 1;
}
