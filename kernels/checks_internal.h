/* Private to kernels/: argument checks of the operators, done once for all backends.
 *
 * A struct rk_check stores the first violation; later expectations are then skipped, so a check function is a
 * list of expectations. Values in device memory (token ids, cu_seqlens, ...) cannot be read here: the backend
 * checks or tolerates them. */
#ifndef RK_CHECKS_INTERNAL_H
#define RK_CHECKS_INTERNAL_H

#include "kernels/rk_kernels.h"

struct rk_check {
    const char *op;       /* prefix of the message */
    struct rk_status *st; /* first violation, owned; NULL if there is none */
};

struct rk_dims {
    int32_t rank;
    int64_t size[RK_TENSOR_MAX_RANK];
};

#define RK_DIMS(...) \
    ((struct rk_dims){(int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})

/* A tensor of exactly this dtype and shape. Rows may be strided from rank 2 on. */
void rk_expect_tensor(struct rk_check *check, const char *arg, rk_tensor_t t, rk_dtype_t dtype,
                      struct rk_dims dims);
/* As rk_expect_tensor; the tensor may be none. */
void rk_expect_optional(struct rk_check *check, const char *arg, rk_tensor_t t, rk_dtype_t dtype,
                        struct rk_dims dims);
/* A float tensor of that rank; its dtype and shape determine what the other arguments must have. */
void rk_expect_source(struct rk_check *check, const char *arg, rk_tensor_t t, int32_t rank);
void rk_expect_contiguous(struct rk_check *check, const char *arg, rk_tensor_t t);
void rk_expect_no_alias(struct rk_check *check, const char *out_arg, rk_tensor_t out, const char *in_arg,
                        rk_tensor_t in);
/* Fails with the message "name=value, expected ..." unless `ok`. */
void rk_expect(struct rk_check *check, bool ok, const char *fmt, ...) RK_PRINTF(3, 4);

/* "stat" tensors are F32, or F64 when the floats are. */
static inline rk_dtype_t rk_stat_dtype(rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
}

/* Number of rows that k and v of packed attention must have. */
static inline int64_t rk_attn_num_keys(const struct rk_attn_varlen_args *args)
{
    return args->k_begin.data || args->k_lens.data ? args->k.shape[0] : args->q.shape[0];
}

/* rk_check_<op>: reports violations to `check`; returns 0 when there is nothing to compute. */
#define X(op, args_type) int64_t rk_check_##op(struct rk_check *check, const struct args_type *args);
RK_KERNEL_TABLE(X)
#undef X

#endif
