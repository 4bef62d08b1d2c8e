/* Empty frames: see frame.h. */
#include "core/base/frame.h"

empty_frame etch__push_frame(void) {
    etch_thread *t = &etch__tls;
    empty_frame f = {t->cursor,   t->run, t->state,        t->layers,
                     t->in_flush, false,  etch__fp_mask(), NULL};
    f.fp_changed = ~f.fp & FP_TRAPS;
    t->cursor = NULL, t->run = NULL;
    t->layers = 0;
    t->in_flush = true;
    return f;
}

empty_frame etch__push_user_frame(void) {
    etch_thread *t = &etch__tls;
    empty_frame f = {t->cursor, t->run, t->state, t->layers, t->in_flush, false, 0, NULL};
    t->in_flush |= t->run != NULL;
    t->cursor = NULL, t->run = NULL;
    t->layers &= ~(1u << LAYER_TRACER);
    return f;
}

void etch__pop_frame(const empty_frame *f) {
    etch_thread *t = &etch__tls;
    t->cursor = f->cursor, t->run = f->run, t->state = f->state;
    t->layers = f->layers, t->in_flush = f->in_flush;
    if (unlikely(f->fp_changed)) etch__fp_control(f->fp);
}

/* Reading MXCSR costs more than a few operators, so that it is read once a frame. */
void etch__frame_mode(empty_frame *f, uint64_t state) {
    if (likely((f->fp & FP_MODE) == STATE_FP(state))) return;
    f->fp_changed = true;
    etch__fp_control(STATE_FP(state) | FP_TRAPS);
}

void etch__interrupt(empty_frame *f) {
    etch_thread *t = &etch__tls;
    *f = etch__push_user_frame();
    f->outer = t->interrupted;
    t->interrupted = f;
    t->watches++;
}

void etch__end_interrupt(const empty_frame *f) {
    etch__tls.watches--;
    etch__tls.interrupted = f->outer;
    etch__pop_frame(f);
}
