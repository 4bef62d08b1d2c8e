/* See stack.h. */
#include "core/base/stack.h"
#include "core/base/start.h"

#include <sys/mman.h>

/* Below the second stack, so that what overflows it writes nothing. */
enum { GUARD = 64 << 10 };

/* ---- changing the stack ---- */

/* etch__run_on(top, work, ctx). Frames can be walked through it: the frame pointer holds. */
__asm__(".pushsection .text\n"
        ".p2align 4\n"
        ".hidden etch__run_on\n"
        ".globl etch__run_on\n"
        ".type etch__run_on, @function\n"
        "etch__run_on:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rbp\n"
        "    .cfi_def_cfa_offset 16\n"
        "    .cfi_offset %rbp, -16\n"
        "    movq %rsp, %rbp\n"
        "    .cfi_def_cfa_register %rbp\n"
        "    movq %rdi, %rsp\n"
        "    movq %rdx, %rdi\n"
        "    call *%rsi\n"
        "    leave\n"
        "    .cfi_def_cfa %rsp, 8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        "    .size etch__run_on, . - etch__run_on\n"
        ".popsection\n");
void etch__run_on(void *top, void (*work)(void *ctx), void *ctx);

static bool inside(const char *low, size_t size) {
    return (size_t)((const char *)__builtin_frame_address(0) - low) < size;
}

void etch__with_second_stack(void (*work)(void *ctx), void *ctx) {
    const thread_stack *s = etch__tls.stack;
    if (s && s->second && !inside(s->second, SECOND_STACK))
        etch__run_on(s->second + SECOND_STACK, work, ctx);
    else work(ctx);
}

/* ---- making it ---- */

/* Where the thread's own stack lies; size 0 where the system does not say. */
static thread_stack own_stack(void) {
    thread_stack s = {0};
    pthread_attr_t attr;
    void *low;
    if (pthread_getattr_np(pthread_self(), &attr) != 0) return s;
    if (pthread_attr_getstack(&attr, &low, &s.size) == 0) s.low = low;
    else s.size = 0;
    pthread_attr_destroy(&attr);
    return s;
}

static thread_stack *find_stack(void) {
    etch_thread *t = &etch__tls;
    if (t->stack) return t->stack;
    if (!t->registered) etch__thread_register();
    t->stack = etch__quiet_malloc(sizeof *t->stack);
    if (t->stack) *t->stack = own_stack();
    return t->stack;
}

static char *new_stack(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
    if (etch__allocation_fails()) return NULL;
    char *p = mmap(NULL, GUARD + SECOND_STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (p == MAP_FAILED) return NULL;
    mprotect(p, GUARD, PROT_NONE);
    return p + GUARD;
}

bool etch__stack_prepare(size_t bytes) {
    thread_stack *s = find_stack();
    if (s && (s->second || etch__stack_has(bytes))) return true;
    if (s && (s->second = new_stack())) return true;
    return etch__false(ETCH_ERR_OUT_OF_MEMORY,
                       "no memory for a stack of %d bytes, which a kernel takes", SECOND_STACK);
}

static void free_stack(etch_thread *t) {
    if (t->stack && t->stack->second) munmap(t->stack->second - GUARD, GUARD + SECOND_STACK);
    etch__free(t->stack);
    t->stack = NULL;
}

void etch__start_stacks(void) { etch__at_thread_end(free_stack); }

/* ---- threads of the library ---- */

int etch__thread_start(pthread_t *thread, void *(*run)(void *), void *ctx) {
    pthread_attr_t attr;
    size_t size = 0;
    int error = pthread_attr_init(&attr);
    if (error) return error;
    if (pthread_attr_getstacksize(&attr, &size) == 0 && size < 2 * SECOND_STACK)
        pthread_attr_setstacksize(&attr, 2 * SECOND_STACK);
    error = pthread_create(thread, &attr, run, ctx);
    pthread_attr_destroy(&attr);
    return error;
}
