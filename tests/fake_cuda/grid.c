/* Runs a kernel: blocks one after another, the threads of a block as fibers. A fiber runs
 * threads one after another until one of them waits at a barrier; then the next fiber goes on
 * with the threads that are left, so a kernel without barriers needs one switch a block. When
 * all threads have ended or wait, those whose barrier or warp operation is complete go on; if
 * there are none, the kernel has diverged. A bad access ends the grid: the signal handler leaves
 * the fiber for the scheduler. */
#include "driver.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the fake driver switches fibers with x86-64 code"
#endif

/* The lowest page of each stack is closed; kernels are compiled to touch every page on the way. */
enum { STACK = 131072, SIGNAL_STACK = 65536, PAGE = 4096, POISON = 0xff };

enum state { WAITING_BLOCK, WAITING_WARP, WAITING_WORD, RUNNABLE, ENDED };
enum { NAMED_BARRIERS = 16 };

typedef struct thread {
    fake_uint3 index;
    enum state state;
    int kind, source, lane;
    unsigned mask;
    unsigned long long value, result;
    const unsigned *word; /* that is to differ from the value */
    void *sp;             /* of its fiber, while it waits */
    char *stack;
} thread;

static struct {
    char *stacks; /* FAKE_MAX_THREADS + 1 of them, and one for signals */
    char *free_stacks[FAKE_MAX_THREADS + 1];
    int free_count;
    thread threads[FAKE_MAX_THREADS];
    thread *now;
    struct {
        int come;
        unsigned opened;
    } named[NAMED_BARRIERS];
    int count, started;
    void *scheduler; /* where it waits for the running fiber */
    void *scrap;
    const fake_work *work;
    const fake_image *image;
    const char *why;
    CUresult error;
    volatile sig_atomic_t running;
    pthread_t owner;
} grid;

/* ---- switching ---- */

void fake__switch(void **save, void *to);
__asm__(".text\n"
        ".type fake__switch,@function\n"
        "fake__switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size fake__switch,.-fake__switch\n");

static void to_scheduler(void **save) { fake__switch(save, grid.scheduler); }

static void set_thread(thread *t) {
    grid.now = t;
    *grid.image->thread = t->index;
}

/* A fiber's life: starts threads while there are some, then gives its stack back. */
static void fiber_main(void) {
    char *stack = grid.now->stack;
    for (;;) {
        grid.work->kernel.function->kernel->call(grid.work->kernel.params);
        grid.now->state = ENDED;
        stack = grid.now->stack;
        if (grid.started == grid.count) break;
        thread *next = &grid.threads[grid.started++];
        next->stack = stack;
        set_thread(next);
    }
    grid.free_stacks[grid.free_count++] = stack;
    to_scheduler(&grid.scrap);
}

static void enter_fiber(thread *t, void (*function)(void)) {
    t->stack = grid.free_stacks[--grid.free_count];
    /* The tops lie in different lines of the cache. */
    const size_t colour = (size_t)(t - grid.threads) * 320 % 4096;
    void **sp = (void **)(t->stack + STACK - colour);
    *--sp = NULL; /* so that the stack is aligned as after a call */
    *--sp = (void *)function;
    for (int i = 0; i < 6; i++) *--sp = NULL;
    fake__switch(&grid.scheduler, sp);
}

static void start_fiber(thread *t) {
    set_thread(t);
    enter_fiber(t, fiber_main);
}

static void resume(thread *t) {
    set_thread(t);
    fake__switch(&grid.scheduler, t->sp);
}

static int barrier(int predicate) {
    thread *t = grid.now;
    t->state = WAITING_BLOCK;
    t->value = predicate != 0;
    to_scheduler(&t->sp);
    return (int)t->result;
}

static unsigned long long warp(int kind, unsigned mask, unsigned long long value, int source) {
    thread *t = grid.now;
    t->state = WAITING_WARP;
    t->kind = kind;
    t->mask = mask;
    t->value = value;
    t->source = source;
    to_scheduler(&t->sp);
    return t->result;
}

static void give_up(CUresult error, const char *why) {
    if (!grid.error) {
        grid.error = error;
        grid.why = why;
    }
    to_scheduler(&grid.scrap);
}

static void trap(const char *why) { give_up(CUDA_ERROR_LAUNCH_FAILED, why); }

static void changed(const unsigned *word, unsigned value) {
    thread *t = grid.now;
    if (*word != value) return;
    t->state = WAITING_WORD;
    t->word = word;
    t->value = value;
    to_scheduler(&t->sp);
}

static void named(int number, int threads, int waits) {
    if (number < 0 || number >= NAMED_BARRIERS || threads % FAKE_WARP) {
        trap("a barrier has a number below 16, and whole warps");
        return;
    }
    const unsigned before = grid.named[number].opened;
    if (++grid.named[number].come == threads) {
        grid.named[number].come = 0;
        grid.named[number].opened++;
    }
    if (waits) changed(&grid.named[number].opened, before);
}

static const fake_hooks hooks = {barrier, warp, trap, changed, named};

/* ---- the scheduler ---- */

static thread *warp_of(const thread *t) {
    return &grid.threads[(t - grid.threads) / FAKE_WARP * FAKE_WARP];
}

static int warp_size(const thread *first) {
    const int left = grid.count - (int)(first - grid.threads);
    return left < FAKE_WARP ? left : FAKE_WARP;
}

/* Have all lanes of the mask come, with the same operation? */
static bool warp_complete(const thread *t) {
    const thread *lanes = warp_of(t);
    const int size = warp_size(lanes);
    if (!(t->mask >> t->lane & 1)) return false;
    for (int i = 0; i < size; i++) {
        if (!(t->mask >> i & 1)) continue;
        const thread *other = &lanes[i];
        if (other->state != WAITING_WARP || other->mask != t->mask || other->kind != t->kind)
            return false;
    }
    return true;
}

static unsigned long long warp_result(const thread *lanes, const thread *t, unsigned ballot) {
    if (t->kind == FAKE_WARP_BALLOT) return ballot;
    if (t->kind == FAKE_WARP_SYNC) return 0;
    /* A lane that is not there, or does not take part, has nothing to give. */
    const bool there = t->source < warp_size(lanes) && (t->mask >> t->source & 1);
    return there ? lanes[t->source].value : ~0ull;
}

static void release_warp(thread *t) {
    thread *lanes = warp_of(t);
    const int size = warp_size(lanes);
    const unsigned mask = t->mask;
    unsigned ballot = 0;
    for (int i = 0; i < size; i++)
        if ((mask >> i & 1) && lanes[i].value) ballot |= 1u << i;
    for (int i = 0; i < size; i++)
        if (mask >> i & 1) lanes[i].result = warp_result(lanes, &lanes[i], ballot);
    for (int i = 0; i < size; i++)
        if (mask >> i & 1) lanes[i].state = RUNNABLE;
}

static bool release_block(void) {
    unsigned long long sum = 0;
    for (int i = 0; i < grid.count; i++) {
        if (grid.threads[i].state != WAITING_BLOCK) return false;
        sum += grid.threads[i].value;
    }
    for (int i = 0; i < grid.count; i++) {
        grid.threads[i].result = sum;
        grid.threads[i].state = RUNNABLE;
    }
    return true;
}

static bool release_one(thread *t) {
    if (t->state == WAITING_WARP && warp_complete(t)) release_warp(t);
    else if (t->state == WAITING_WORD && *t->word != t->value) t->state = RUNNABLE;
    else return false;
    return true;
}

static bool release(void) {
    bool any = false;
    for (int i = 0; i < grid.count; i++) any |= release_one(&grid.threads[i]);
    return any || release_block();
}

static void diverged(void) {
    int waiting[ENDED + 1] = {0};
    for (int i = 0; i < grid.count; i++) waiting[grid.threads[i].state]++;
    static char why[160];
    snprintf(why, sizeof why,
             "divergent barrier: of %d threads %d wait for the block, %d for their warp, %d for "
             "some others, %d ended",
             grid.count, waiting[WAITING_BLOCK], waiting[WAITING_WARP], waiting[WAITING_WORD],
             waiting[ENDED]);
    grid.error = CUDA_ERROR_LAUNCH_FAILED;
    grid.why = why;
}

static bool all_ended(void) {
    for (int i = 0; i < grid.count; i++)
        if (grid.threads[i].state != ENDED) return false;
    return true;
}

static void run_block(void) {
    grid.started = 0;
    memset(grid.named, 0, sizeof grid.named);
    while (grid.started < grid.count && !grid.error) start_fiber(&grid.threads[grid.started++]);
    while (!grid.error && !all_ended()) {
        if (!release()) {
            diverged();
            return;
        }
        for (int i = 0; i < grid.count && !grid.error; i++)
            if (grid.threads[i].state == RUNNABLE) resume(&grid.threads[i]);
    }
}

/* ---- faults ---- */

static struct sigaction before[3];
static const int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};

static void leave_after_fault(void) { to_scheduler(&grid.scrap); }

static void not_ours(int number, siginfo_t *info, void *context) {
    for (int i = 0; i < 3; i++) {
        if (signals[i] != number) continue;
        if (before[i].sa_flags & SA_SIGINFO) before[i].sa_sigaction(number, info, context);
        else if (before[i].sa_handler != SIG_DFL && before[i].sa_handler != SIG_IGN)
            before[i].sa_handler(number);
        else sigaction(number, &before[i], NULL); /* happens again, and ends the process */
        return;
    }
}

/* Device memory opens at its first touch. Anything else goes on in leave_after_fault, on the stack
 * below the waiting scheduler, since the fiber's own may be what overflowed. */
static void on_fault(int number, siginfo_t *info, void *context) {
    if (!grid.running || !pthread_equal(grid.owner, pthread_self())) {
        not_ours(number, info, context);
        return;
    }
    if (number == SIGSEGV && fake__open_at((uintptr_t)info->si_addr)) return;
    static char why[120];
    const char *at = info->si_addr, *stacks = grid.stacks + SIGNAL_STACK;
    const bool overflow = at >= stacks && at < stacks + (size_t)STACK * FAKE_MAX_THREADS;
    const char *what = number == SIGFPE ? "division by zero or overflow"
                       : overflow       ? "more local memory than the fake has"
                                        : "bad access";
    const fake_uint3 block = grid.image ? *grid.image->block : (fake_uint3){0, 0, 0};
    const fake_uint3 index = grid.now->index;
    snprintf(why, sizeof why, "%s at %p, block (%u,%u,%u), thread (%u,%u,%u)", what, info->si_addr,
             block.x, block.y, block.z, index.x, index.y, index.z);
    grid.error = number == SIGFPE ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_ILLEGAL_ADDRESS;
    grid.why = why;
    ucontext_t *machine = context;
    machine->uc_mcontext.gregs[REG_RSP] = (((greg_t)grid.scheduler - 4096) & ~(greg_t)15) - 8;
    machine->uc_mcontext.gregs[REG_RIP] = (greg_t)leave_after_fault;
}

static void catch_faults(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < 3; i++) {
        struct sigaction old;
        sigaction(signals[i], NULL, &old);
        if ((old.sa_flags & SA_SIGINFO) && old.sa_sigaction == on_fault) continue;
        before[i] = old;
        sigaction(signals[i], &action, NULL);
    }
}

/* ---- the grid ---- */

static bool have_stacks(void) {
    const size_t size = (size_t)STACK * FAKE_MAX_THREADS + SIGNAL_STACK;
    if (grid.stacks) return true;
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (at == MAP_FAILED) return false;
    grid.stacks = at;
    for (int i = 0; i < FAKE_MAX_THREADS; i++)
        mprotect(grid.stacks + SIGNAL_STACK + (size_t)i * STACK, PAGE, PROT_NONE);
    return true;
}

static void free_all_stacks(void) {
    grid.free_count = 0;
    for (int i = FAKE_MAX_THREADS - 1; i >= 0; i--)
        grid.free_stacks[grid.free_count++] = grid.stacks + SIGNAL_STACK + (size_t)i * STACK;
}

static void lay_out_threads(const unsigned block[3]) {
    grid.count = (int)(block[0] * block[1] * block[2]);
    for (int i = 0; i < grid.count; i++) {
        const unsigned n = (unsigned)i;
        grid.threads[i].index =
            (fake_uint3){n % block[0], n / block[0] % block[1], n / (block[0] * block[1])};
        grid.threads[i].lane = i % FAKE_WARP;
    }
}

/* Shared memory starts as garbage in every block. Behind the dynamic part lies a red zone. */
enum { DYNAMIC_RED = 256 };

static size_t red_room(unsigned shared) {
    const size_t left = FAKE_DYNAMIC_ROOM - shared;
    return left < DYNAMIC_RED ? left : DYNAMIC_RED;
}

static void poison_shared(const fake_image *image, unsigned shared) {
    memset(image->shared_from, POISON, (size_t)(image->shared_to - image->shared_from));
    memset(image->dynamic, POISON, shared + red_room(shared));
}

static void check_shared(const fake_image *image, unsigned shared) {
    for (size_t i = 0; i < red_room(shared); i++)
        if ((unsigned char)image->dynamic[shared + i] != POISON && !grid.error) {
            grid.error = CUDA_ERROR_ILLEGAL_ADDRESS;
            grid.why = "written behind the dynamic shared memory";
        }
}

static void run_blocks(const fake_image *image, const fake_work *work) {
    const unsigned *n = work->kernel.grid;
    const uint64_t blocks = (uint64_t)n[0] * n[1] * n[2];
    for (uint64_t i = 0; i < blocks && !grid.error; i++) {
        const uint64_t b = fake.lazy ? blocks - 1 - i : i; /* no order is promised */
        *image->block = (fake_uint3){(unsigned)(b % n[0]), (unsigned)(b / n[0] % n[1]),
                                     (unsigned)(b / n[0] / n[1])};
        poison_shared(image, work->kernel.shared);
        run_block();
        check_shared(image, work->kernel.shared);
    }
}

/* A pointer parameter that certainly is no device memory: the kernel would read the host's. */
static bool host_pointer(const fake_work *work) {
    const fake_kernel *kernel = work->kernel.function->kernel;
    for (int i = 0; i < kernel->params; i++) {
        if (!kernel->pointers[i]) continue;
        uintptr_t at;
        memcpy(&at, work->kernel.params[i], sizeof at);
        if (at < 4096 || fake__in_arena(at) || fake__is_pinned(at, 1) || fake__inside(at, 1))
            continue;
        fake__say("kernel %s: parameter %d, %#zx, is a pointer of the host",
                  work->kernel.function->name, i, at);
        return true;
    }
    return false;
}

static void run_function(void) {
    grid.work->run.run(grid.work->run.data);
    to_scheduler(&grid.scrap);
}

static void run_with_faults_caught(const fake_image *image, const fake_work *work) {
    stack_t mine = {.ss_sp = grid.stacks, .ss_size = SIGNAL_STACK}, old;
    catch_faults();
    sigaltstack(&mine, &old);
    grid.owner = pthread_self();
    grid.running = 1;
    if (image) run_blocks(image, work);
    else enter_fiber(grid.now, run_function);
    grid.running = 0;
    sigaltstack(&old, NULL);
}

/* What parameters point to, or pointers in structures among them, is opened now: that is quicker
 * than the fault at the first touch. Any word that looks like an address of
 * the device may be one. */
static void open_params(const fake_work *work) {
    const fake_kernel *kernel = work->kernel.function->kernel;
    for (int i = 0; i < kernel->params; i++)
        for (unsigned at = 0; at + sizeof(uintptr_t) <= kernel->sizes[i]; at += 8) {
            uintptr_t word;
            memcpy(&word, (const char *)work->kernel.params[i] + at, sizeof word);
            fake__open_at(word);
        }
}

static CUresult begin(const fake_work *work, const fake_image *image) {
    CHECK(have_stacks(), CUDA_ERROR_OUT_OF_MEMORY);
    grid.work = work;
    grid.image = image;
    grid.error = CUDA_SUCCESS;
    grid.now = &grid.threads[0];
    free_all_stacks();
    fake__open(work->context);
    return CUDA_SUCCESS;
}

static CUresult end(const char *name) {
    if (grid.error) fake__say("kernel %s: %s", name, grid.why);
    const CUresult outside = fake__close(name);
    return grid.error ? grid.error : outside;
}

/* What a library does, as one thread. */
CUresult fake__run_library(const fake_work *work) {
    TRY(begin(work, NULL));
    grid.threads[0].index = (fake_uint3){0, 0, 0};
    run_with_faults_caught(NULL, work);
    return end(work->name);
}

CUresult fake__run_grid(const fake_work *work) {
    CUfunction function = work->kernel.function;
    const fake_image *image = function->module->image;
    if (host_pointer(work)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    TRY(begin(work, image));
    lay_out_threads(work->kernel.block);
    const unsigned *block = work->kernel.block, *n = work->kernel.grid;
    *image->block_size = (fake_uint3){block[0], block[1], block[2]};
    *image->grid_size = (fake_uint3){n[0], n[1], n[2]};
    *image->dynamic_size = work->kernel.shared;
    *image->hooks = &hooks;
    open_params(work);
    run_with_faults_caught(image, work);
    return end(function->name);
}
