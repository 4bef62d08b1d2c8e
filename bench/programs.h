/* Ordinary programs, as functions of two square matrices of side n: solvers, models, automata. What
 * they share is many rounds and short-lived temporaries; bench/memory.c and the suite `memory`
 * compare their peaks of memory, compiled beside eager. */
#ifndef ETCH_BENCH_PROGRAMS_H
#define ETCH_BENCH_PROGRAMS_H

#include <etch/etch.h>

typedef struct bench_program {
    const char *name;
    etch_fn2 body;
} bench_program;

/* Ends with one without a name. */
extern const bench_program bench_programs[];

/* Rounds of those that have a loop. */
extern int bench_rounds;

#endif
