/* The tables of the three instruction sets, and the one that this process uses. */
#include "backends/cpu/table.h"
#include "core/base/start.h"

#include <stdatomic.h>

#define TABLE(isa)                                                                                 \
    {                                                                                              \
        &etch__strips_##isa, &etch__reduce_##isa, &etch__product_##isa, &etch__random_##isa,       \
            &etch__pool_##isa, &etch__panels_##isa, &etch__dots_##isa, &etch__amx_##isa,           \
            &etch__attention_##isa, &etch__quantized_##isa, &etch__conv_##isa, &etch__scan_##isa,  \
            &etch__chain_##isa                                                                     \
    }

const isa_table etch__isa_tables[CPU_ISA_COUNT] = {
    [CPU_ISA_BASELINE] = TABLE(baseline),
    [CPU_ISA_AVX2] = TABLE(avx2),
    [CPU_ISA_AVX512] = TABLE(avx512),
};

const isa_table *etch__isa_table(void) {
    static const isa_table *_Atomic chosen;
    const isa_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (unlikely(!table)) {
        table = &etch__isa_tables[etch__cpu_isa()];
        atomic_store_explicit(&chosen, table, memory_order_relaxed);
    }
    return table;
}

static const void *functions(void) { return etch__isa_table()->strips->prim; }

void etch__start_cpu_functions(void) { etch__register_functions(functions); }
