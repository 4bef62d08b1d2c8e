/* Devices by number, the thread's current one, and tensors between them. */
#include "core/tensor/device.h"

#include <stdlib.h>

#include "core/tensor/element.h"

enum { DEVICES_MAX = 64 };

static const device_kind *the_kind;

void etch__device_register(const device_kind *kind) { the_kind = kind; }

const device_kind *etch__device_kind(int device) { return device > 0 ? the_kind : NULL; }

/* ---- names and numbers ---- */

int etch_cuda_count(void) {
    int n = the_kind ? the_kind->count() : 0;
    return n < DEVICES_MAX ? n : DEVICES_MAX;
}

const char *etch_cuda_absent(void) {
    if (!the_kind) return "this build has no CUDA backend";
    return the_kind->count() ? "" : the_kind->absent();
}

const char *etch_device_name(etch_device device) {
    static const char names[DEVICES_MAX][8] = {
#define N(i) "cuda:" #i
        N(0),  N(1),  N(2),  N(3),  N(4),  N(5),  N(6),  N(7),  N(8),  N(9),  N(10),
        N(11), N(12), N(13), N(14), N(15), N(16), N(17), N(18), N(19), N(20), N(21),
        N(22), N(23), N(24), N(25), N(26), N(27), N(28), N(29), N(30), N(31)
#undef N
    };
    if (device == ETCH_CPU) return "cpu";
    bool named = device > 0 && device <= DEVICES_MAX && names[device - 1][0];
    return named ? names[device - 1] : "unknown";
}

etch_device etch_device_parse(const char *name) {
    if (name && !strcmp(name, "cpu")) return ETCH_CPU;
    if (name && !strcmp(name, "cuda")) return ETCH_CUDA(0);
    if (name && !strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9') {
        char *end;
        long index = strtol(name + 5, &end, 10);
        if (!*end && index < DEVICES_MAX) return ETCH_CUDA((etch_device)index);
    }
    etch__error_at(__builtin_return_address(0), ETCH_ERR_NOT_FOUND,
                   "etch_device_parse: expected \"cpu\", \"cuda\" or \"cuda:N\", got %s%s%s",
                   name ? "\"" : "", name ? name : "NULL", name ? "\"" : "");
    return -1;
}

bool etch__device_check(int device, const char *function, const void *site) {
    int n = device ? etch_cuda_count() : 0;
    if (device == ETCH_CPU || (device > 0 && device <= n)) return true;
    if (n)
        etch__error_at(site, ETCH_ERR_DEVICE, "%s: expected cpu or cuda:0 to cuda:%d, got %s (%d)",
                       function, n - 1, etch_device_name(device), device);
    else
        etch__error_at(site, ETCH_ERR_DEVICE, "%s: expected cpu, got %s (%d): no GPU: %s", function,
                       etch_device_name(device), device, etch_cuda_absent());
    return false;
}

etch_device etch_device_of(const etch_tensor *t) {
    bool ok = etch__handle_ok(t, "etch_device_of", "t", __builtin_return_address(0));
    return ok ? t->device : -1;
}

etch_device etch_current_device(void) { return etch__current_device(); }

etch_status etch_set_device(etch_device device) {
    if (!etch__device_check(device, "etch_set_device", __builtin_return_address(0)))
        return ETCH_ERR_DEVICE;
    etch__tls.state = STATE_ON_DEVICE(etch__tls.state, device);
    return ETCH_OK;
}

etch_status etch_synchronize(etch_device device) {
    const void *site = __builtin_return_address(0);
    if (!etch__device_check(device, "etch_synchronize", site)) return ETCH_ERR_DEVICE;
    if (etch__tls.run) {
        etch_status status = etch__trace_hooks.read(NULL, REASON_BREAK_FLUSH, site);
        if (status != ETCH_OK) return status;
    }
    const device_kind *kind = etch__device_kind(device);
    return kind ? kind->synchronize(etch__device_index(device)) : ETCH_OK;
}

etch_device_stats_t etch_device_stats(etch_device device) {
    etch_device_stats_t s = {0};
    if (device > 0 && device <= etch_cuda_count()) the_kind->stats(etch__device_index(device), &s);
    return s;
}

etch_status etch_device_trim(etch_device device) {
    if (!etch__device_check(device, "etch_device_trim", __builtin_return_address(0)))
        return ETCH_ERR_DEVICE;
    return device ? the_kind->trim(etch__device_index(device)) : ETCH_OK;
}

etch_status etch__await_storage(etch_storage *s) { return etch__device_kind(1)->settle(s); }

/* ---- elements in host memory ---- */

void etch__span(const etch_tensor *t, size_t *from, size_t *bytes) {
    int64_t low = t->offset, high = t->offset, size = etch__item_size(t);
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = (t->size[d] - 1) * t->stride[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    *from = t->numel ? (size_t)(low * size) : 0; /* a size of 0 reaches backwards */
    *bytes = t->numel ? (size_t)((high - low + 1) * size) : 0;
}

const etch_tensor *etch__host_view(const etch_tensor *t, host_view *v) {
    memset(v, 0, sizeof *v);
    if (likely(!t->device)) return t;
    etch__span(t, &v->from, &v->bytes);
    if (!(v->memory = etch__malloc(v->bytes + 64))) return NULL;
    v->s.refs = 2; /* never to be freed by a handle */
    v->s.bytes = v->bytes, v->s.data = v->memory;
    v->t = *t;
    v->t.device = 0, v->t.storage = &v->s;
    v->t.offset -= (int64_t)v->from / etch__item_size(t);
    if (!v->bytes) return &v->t;
    const device_kind *kind = etch__device_kind(t->device);
    return kind->copy(&v->s, 0, t->storage, v->from, v->bytes) == ETCH_OK ? &v->t : NULL;
}

void etch__host_view_end(host_view *v) { etch__free(v->memory); }
