// The same from C++17: the macros that need C11 have plain functions behind them.
#include <etch/etch.h>
#include <cstdio>

static etch_tensor *twice_plus_one(etch_tensor *x) {
    etch_tensor *twice = etch_mul_scalar(x, ETCH_SCALAR(2.0));
    return etch_add_scalar(twice, ETCH_SCALAR(1));
}

int main() {
    double value = 0;
    etch_function *f = etch_compile_fn1(twice_plus_one, nullptr);
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(4), ETCH_SCALAR(3.0));
        etch_call_one(f, &x, 1); // recorded and compiled
        value = etch_item(etch_sum(etch_call_one(f, &x, 1)));
    }
    etch_counters_t c = etch_counters();
    std::printf("%g %s %s\n", value, c.plan_runs == 1 ? "planned" : "unplanned",
                c.kernel_launches > 0 ? "compiled" : "eager");
    if (value != 28) std::fprintf(stderr, "%s\n", etch_last_error());
    etch_function_free(f);
    return value == 28 ? 0 : 1;
}
