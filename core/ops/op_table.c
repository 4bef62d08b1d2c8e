/* The operator table as data, from core/ops/ops.def. */
#include "core/dispatch/composite.h"
#include "core/ops/op.h"
#include "core/ops/rules.h"

#include <assert.h>

/* The impl column names an expression, a reduce_kind or a composite; only the last needs code here,
 * expressions are found by name in core/ops/expr.c. */
#define COMPOSITE_POINTWISE(impl) NULL
#define COMPOSITE_INPLACE(impl) NULL
#define COMPOSITE_REDUCTION(impl) NULL
#define COMPOSITE_VIEW(impl) NULL
#define COMPOSITE_CONTRACTION(impl) NULL
#define COMPOSITE_CREATION(impl) NULL
#define COMPOSITE_OTHER(impl) NULL
#define COMPOSITE_COMPOSITE(impl) etch__composite_##impl

#define IMPL_POINTWISE(impl) -1
#define IMPL_INPLACE(impl) -1
#define IMPL_REDUCTION(impl) REDUCE_##impl
#define IMPL_VIEW(impl) -1
#define IMPL_CONTRACTION(impl) -1
#define IMPL_CREATION(impl) -1
#define IMPL_OTHER(impl) -1
#define IMPL_COMPOSITE(impl) -1

atomic_int etch__op_count = OP_COUNT;
op_info etch__ops[OP_CAPACITY] = {
/* clang-format off */
#define OP(id_, name_, schema_, cfn_, kind_, drule_, srule_, impl_, flags_)                        \
    [OP_##id_] = {.id = OP_##id_, .kind = KIND_##kind_, .drule = DRULE_##drule_,                   \
                 .srule = SRULE_##srule_, .flags = OPFLAGS(flags_), .nout = 1,                     \
                 .impl = IMPL_##kind_(impl_), .composite = COMPOSITE_##kind_(impl_),               \
                 .name = name_, .schema = name_ schema_, .cfn = cfn_},
/* clang-format on */
#define OPFLAGS(flags) (flags)
#define MAY_FAIL OPF_MAY_FAIL
#define COMMUTES OPF_COMMUTES
#define RANDOM OPF_RANDOM
#define CLASS_ALPHA OPF_CLASS_ALPHA
#define CLASS_EXPONENT OPF_CLASS_EXPONENT
#define CLASS_NUMEL OPF_CLASS_NUMEL
#define SELECTS OPF_SELECTS
#include "core/ops/ops.def"
#undef OP
};

static_assert(OP_CAPACITY < 0xffff, "operator numbers are 16 bits, 0xffff means none");
