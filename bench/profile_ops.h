/* Private to bench/: shape and cost of an operator's call for the profile. */
#ifndef RK_PROFILE_OPS_H
#define RK_PROFILE_OPS_H

#include "kernels/rk_kernels.h"

struct bench_op_note {
    const char *name;
    char shape[64];
    double flops, bytes; /* of the call; flops 0: bound by bytes */
};

enum bench_op_id {
#define X(op, args_type) RK_BENCH_OP_##op,
    RK_KERNEL_TABLE(X)
#undef X
        RK_BENCH_OP_COUNT
};

/* Sets shape and cost of the call; no-op for operators without a row. */
void bench_note_op(struct bench_op_note *note, enum bench_op_id op, const void *args);

#endif
