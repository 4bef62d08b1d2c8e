/* Factors for learning rates by the number of steps: see include/etch/optim.h. */
#include "nn/module.h"

#include <etch/optim.h>
#include <math.h>

static double half_cosine(double from, double to, double part) {
    return to + (from - to) * (1 + cos(acos(-1) * part)) / 2;
}

static double by_steps(const etch_schedule *s, int64_t t) {
    return pow(s->gamma ? s->gamma : 0.1, (double)(t / s->period));
}

static double by_cosine(const etch_schedule *s, int64_t t) {
    return t >= s->total ? s->least : half_cosine(1, s->least, (double)t / (double)s->total);
}

/* Up to the step part total - 1, then down to the step total - 1. */
static double by_one_cycle(const etch_schedule *s, int64_t t) {
    double last = (double)(s->total - 1), part = s->part ? s->part : 0.3;
    double top = part * (double)s->total - 1, at = fmin((double)t, last);
    double low = 1 / (s->div ? s->div : 25), end = low / (s->final_div ? s->final_div : 1e4);
    if (top > 0 && at <= top) return half_cosine(low, 1, at / top);
    return half_cosine(1, end, last > top ? (at - fmax(top, 0)) / (last - fmax(top, 0)) : 1);
}

static bool is_possible(const etch_schedule *s) {
    if (s->warmup < 0) return false;
    switch (s->kind) {
    case ETCH_SCHEDULE_CONSTANT: return true;
    case ETCH_SCHEDULE_STEP: return s->period > 0 && s->gamma >= 0;
    case ETCH_SCHEDULE_COSINE: return s->total > 0 && isfinite(s->least);
    case ETCH_SCHEDULE_ONE_CYCLE:
        return s->total > 1 && s->part >= 0 && s->part <= 1 && s->div >= 0 && s->final_div >= 0;
    default: return false;
    }
}

double etch_schedule_factor(const etch_schedule *s, int64_t step) {
    if (!s) return etch__nn_null("etch_schedule_factor", "a schedule"), NAN;
    if (!is_possible(s) || step < 0) {
        etch_set_error(ETCH_ERR_INVALID_ARGUMENT,
                       "etch_schedule_factor: expected a schedule with a period or total above 0, "
                       "and part of 0 to 1, and no step below 0");
        return NAN;
    }
    if (step < s->warmup) return (double)(step + 1) / (double)s->warmup;
    int64_t t = step - s->warmup;
    switch (s->kind) {
    case ETCH_SCHEDULE_STEP: return by_steps(s, t);
    case ETCH_SCHEDULE_COSINE: return by_cosine(s, t);
    case ETCH_SCHEDULE_ONE_CYCLE: return by_one_cycle(s, t);
    default: return 1;
    }
}
