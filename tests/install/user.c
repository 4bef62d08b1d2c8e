/* A ten-line program of a user, built against the installed tree. */
#include <etch/etch.h>
#include <stdio.h>

static etch_tensor *twice_plus_one(etch_tensor *x) {
    etch_tensor *twice = etch_mul_scalar(x, 2.0);
    return etch_add_scalar(twice, 1);
}

int main(void) {
    double value = 0;
    etch_function *f = etch_compile(twice_plus_one);
    ETCH_SCOPE {
        etch_tensor *x = etch_full(ETCH_F32, ETCH_SHAPE(4), 3.0);
        etch_call(f, x); /* recorded and compiled */
        value = etch_item(etch_sum(etch_call(f, x)));
    }
    etch_counters_t c = etch_counters();
    printf("%g %s %s\n", value, c.plan_runs == 1 ? "planned" : "unplanned",
           c.kernel_launches > 0 ? "compiled" : "eager");
    if (value != 28) fprintf(stderr, "%s\n", etch_last_error());
    etch_function_free(f);
    return value == 28 ? 0 : 1;
}
