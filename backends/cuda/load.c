/* Finding the libraries. */
#include <dlfcn.h>
#include <pthread.h>

#include "backends/cuda/api.h"

cuda_api etch__cuda;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool loaded;
static char reason[512], compiler_reason[512];

enum { DRIVER, NVRTC, CUBLASLT, LIBRARIES };

static const struct library {
    const char *what;
    param_id param;
    const char *names[4]; /* tried in turn */
} libraries[LIBRARIES] = {
    {"the CUDA driver", PARAM_CUDA_DRIVER, {"libcuda.so.1"}},
    {"NVRTC", PARAM_CUDA_NVRTC, {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}},
    {"cuBLASLt", PARAM_CUDA_CUBLASLT, {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}},
};

static void *open_library(const struct library *l) {
    const char *path = etch__param(l->param);
    if (*path) return dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *handle = NULL;
    for (int i = 0; !handle && i < COUNT_OF(l->names) && l->names[i]; i++)
        handle = dlopen(l->names[i], RTLD_NOW | RTLD_LOCAL);
    return handle;
}

static const struct symbol {
    int library;
    const char *name;
    size_t at;
    bool may_lack;
} symbols[] = {
#define CALL(library, symbol, arguments) {library, #symbol, offsetof(cuda_api, symbol), false},
#define MAY_CALL(library, symbol, arguments) {library, #symbol, offsetof(cuda_api, symbol), true},
#include "backends/cuda/api.def"
#undef CALL
};

static bool resolve(void *const *handles) {
    for (int i = 0; i < COUNT_OF(symbols); i++) {
        const struct symbol *s = &symbols[i];
        if (!handles[s->library]) continue;
        void *address = dlsym(handles[s->library], s->name);
        if (!address && !s->may_lack) {
            snprintf(reason, sizeof reason, "%s is too old: it has no %s",
                     libraries[s->library].what, s->name);
            return false;
        }
        memcpy((char *)&etch__cuda + s->at, &address, sizeof address);
    }
    return true;
}

static bool refuses(const char *call, int status) {
    const char *text = NULL;
    if (!status) return false;
    etch__cuda.cuGetErrorString(status, &text);
    snprintf(reason, sizeof reason, "%s: %s", call, text ? text : "unknown error");
    return true;
}

static bool start_driver(void) {
    int version = 0;
    if (refuses("cuInit", etch__cuda.cuInit(0)) ||
        refuses("cuDriverGetVersion", etch__cuda.cuDriverGetVersion(&version)))
        return false;
    if (version >= CUDA_DRIVER_MIN) return true;
    snprintf(reason, sizeof reason, "the driver is too old: expected CUDA %d.%d, got %d.%d",
             CUDA_DRIVER_MIN / 1000, CUDA_DRIVER_MIN % 1000 / 10, version / 1000,
             version % 1000 / 10);
    return false;
}

static void *open_or_say(int library, char *why, size_t n) {
    void *handle = open_library(&libraries[library]);
    const char *error = handle ? NULL : dlerror();
    if (!handle)
        snprintf(why, n, "%s was not found: %s", libraries[library].what,
                 error ? error : "unknown error");
    return handle;
}

static void load(void) {
    void *handles[LIBRARIES];
    if (!etch__param_int(PARAM_CUDA)) {
        snprintf(reason, sizeof reason, "ETCH_CUDA=0 hides it");
        return;
    }
    for (int i = 0; i < LIBRARIES; i++) {
        bool compiler = i == NVRTC;
        handles[i] = compiler ? open_or_say(i, compiler_reason, sizeof compiler_reason)
                              : open_or_say(i, reason, sizeof reason);
        if (!handles[i] && !compiler)
            return; /* what is open stays so: libraries of NVIDIA do not like to be closed */
    }
    loaded = resolve(handles) && start_driver();
}

bool etch__cuda_load(const char **why) {
    pthread_once(&once, load);
    *why = reason;
    return loaded;
}

const char *etch__cuda_compiler_absent(void) { return compiler_reason; }

int etch__cuda_compiler_text(char *text, size_t n) {
    int major = 0, minor = 0;
    if (!*compiler_reason) etch__cuda.nvrtcVersion(&major, &minor);
    return snprintf(text, n, "nvrtc %d.%d ", major, minor);
}

/* ---- statuses ---- */

etch_status etch__cuda_failed(const char *call, int status) {
    const char *name = NULL, *text = NULL;
    if (likely(!status)) return ETCH_OK;
    etch__cuda.cuGetErrorName(status, &name);
    etch__cuda.cuGetErrorString(status, &text);
    return etch__error_at(
        NULL, status == CU_ERROR_OUT_OF_MEMORY ? ETCH_ERR_OUT_OF_MEMORY : ETCH_ERR_DEVICE,
        "%s: %s (%d): %s", call, name ? name : "error", status, text ? text : "?");
}

etch_status etch__nvrtc_failed(const char *call, int status) {
    return status ? etch__error_at(NULL, ETCH_ERR_COMPILE, "%s: status %d", call, status) : ETCH_OK;
}

etch_status etch__lt_failed(const char *call, int status) {
    return status ? etch__error_at(NULL, ETCH_ERR_DEVICE, "%s: status %d", call, status) : ETCH_OK;
}
