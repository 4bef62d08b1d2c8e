/* The cost of one operator under the cursor, through the installed shared library: a captured
 * tensor, a run-time scalar that changes with every call, an inner scope every five operators. The
 * operators are dead (see overheads.c), so that bodies of two lengths differ by the cursor alone.
 *
 * etch_cursor [NAME...]            CSV lines as etch_bench's; nothing when no NAME fits "cursor"
 * etch_cursor --walk ROUNDS CALLS  only calls, for callgrind.sh to count instructions */
#include <etch/etch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SHORT_ROUNDS = 1, LONG_ROUNDS = 21, OPERATORS = (LONG_ROUNDS - SHORT_ROUNDS) * 5 };

static etch_tensor *captured;
static double factor = 1;
static int rounds;

static etch_tensor *body(etch_tensor *x) {
    for (int i = 0; i < rounds; i++) {
        ETCH_SCOPE {
            etch_tensor *a = etch_mul_scalar(x, factor);
            etch_tensor *b = etch_add(a, captured);
            etch_tensor *c = etch_neg(b);
            etch_tensor *d = etch_maximum(c, captured);
            etch_relu(d);
        }
    }
    return etch_relu(x);
}

/* Each length has its own compiled function; both run this body. */
static void walk(etch_function *f, etch_tensor *x, int length, int64_t calls) {
    rounds = length;
    for (int64_t i = 0; i < calls; i++) {
        factor += 0.25;
        ETCH_SCOPE {
            if (!etch_call(f, x)) {
                fprintf(stderr, "etch_cursor: %s\n", etch_last_error());
                exit(1);
            }
        }
    }
}

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Nanoseconds an operator: median of five differences, each from two samples side by side. */
static double cursor_ns(etch_tensor *x) {
    enum { CALLS = 20000 };
    etch_function *small = etch_compile(body), *large = etch_compile(body);
    double differences[5];
    walk(small, x, SHORT_ROUNDS, 100), walk(large, x, LONG_ROUNDS, 100);
    for (int i = 0; i < 5; i++) {
        double start = now_ns();
        walk(small, x, SHORT_ROUNDS, CALLS);
        double middle = now_ns();
        walk(large, x, LONG_ROUNDS, CALLS);
        differences[i] = ((now_ns() - middle) - (middle - start)) / CALLS / OPERATORS;
    }
    qsort(differences, 5, sizeof differences[0], compare);
    etch_counters_t c = etch_function_counters(large);
    if (c.graphs != 1 || c.divergences != 0)
        fprintf(stderr, "etch_cursor: the trace did not hold (%lld graphs, %lld divergences)\n",
                (long long)c.graphs, (long long)c.divergences);
    etch_function_free(small), etch_function_free(large);
    return differences[2];
}

static bool selected(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strstr("overhead cursor", argv[i])) return true;
    return argc < 2;
}

int main(int argc, char **argv) {
    etch_set_num_threads(1);
    ETCH_SCOPE {
        etch_tensor *x = etch_randn(ETCH_F32, ETCH_SHAPE(1));
        captured = etch_randn(ETCH_F32, ETCH_SHAPE(1));
        if (argc == 4 && strcmp(argv[1], "--walk") == 0) {
            etch_function *f = etch_compile(body);
            walk(f, x, atoi(argv[2]), atoll(argv[3]));
            etch_function_free(f);
        } else if (selected(argc, argv)) {
            printf("overhead cursor,one operator,f32,cpu,1,installed shared library,%.4f,,,\n",
                   cursor_ns(x) * 1e-3);
        }
    }
    return 0;
}
