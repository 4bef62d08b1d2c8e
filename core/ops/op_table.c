/* The operator table as data, from core/ops/ops.def. Expressions are found by name in
 * core/ops/expr.c, composites in core/dispatch/composite.c. */
#include "core/ops/op.h"
#include "core/ops/rules.h"

#define ROW(id_, name_, schema_, cfn_, kind_, drule_, srule_, impl_, flags_, plain_)               \
    [OP_##id_] = {.id = OP_##id_,                                                                  \
                  .kind = KIND_##kind_,                                                            \
                  .drule = DRULE_##drule_,                                                         \
                  .srule = SRULE_##srule_,                                                         \
                  .flags = flags_,                                                                 \
                  .nout = 1,                                                                       \
                  .impl = impl_,                                                                   \
                  .plain = OP_##plain_,                                                            \
                  .name = name_,                                                                   \
                  .schema = name_ schema_,                                                         \
                  .cfn = cfn_},

atomic_int etch__op_count = OP_COUNT;
op_info etch__ops[OP_CAPACITY] = {
#define MAY_FAIL OPF_MAY_FAIL
#define COMMUTES OPF_COMMUTES
#define RANDOM OPF_RANDOM
#define CLASS_ALPHA OPF_CLASS_ALPHA
#define CLASS_EXPONENT OPF_CLASS_EXPONENT
#define CLASS_NUMEL OPF_CLASS_NUMEL
#define CLASS_FACTORS OPF_CLASS_FACTORS
#define SELECTS OPF_SELECTS
#define IN_PLACE 0
#define OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, ...)                     \
    ROW(id, name, schema, cfn, kind, drule, srule, -1, flags, plain)
#define REDUCTION_OP(id, name, schema, cfn, kind, drule, srule, impl, flags, plain, ...)           \
    ROW(id, name, schema, cfn, kind, drule, srule, REDUCE_##impl, flags, plain)
#include "operators.def"
};

static_assert(OP_CAPACITY < 0xffff, "operator numbers are 16 bits, 0xffff means none");
