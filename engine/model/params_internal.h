/* Private to engine/: building the parameter table and laying it out in the flat buffers.
 *
 * Parameters are declared in the order of the forward pass. The flat buffers hold the matrices in the reverse
 * order, which is about the order in which gradients become complete, and behind them the vectors, which are
 * small and have no weight decay: the optimizer then has few ranges to go through. Every allocation starts at
 * a multiple of 64 elements, and the total is a multiple of lcm(dp, 128), so that each dp rank owns an equal
 * part. Parameters and gradients have the same index map, the same on all ranks of the tp and dp groups. */
#ifndef RK_PARAMS_INTERNAL_H
#define RK_PARAMS_INTERNAL_H

#include "engine/rk_model.h"

struct rk_param_row {
    struct rk_param param;
    bool is_fused; /* in the same allocation as the row before it */
};

struct rk_param_table {
    struct rk_param_row *rows;
    int64_t count, capacity;
    int32_t tp_rank, tp_size;
    int64_t num_elements; /* of a flat buffer, padding included; 0 until laid out */
};

/* What a layer says about a parameter. */
struct rk_param_spec {
    int64_t rows, cols;  /* global shape; cols 0: a vector */
    int32_t split_dim;   /* over tp: 0, 1, or -1 when replicated */
    int32_t num_parts;   /* 0: one for each tp rank */
    int64_t rows_padded; /* 0: rows; else split_dim is 0 and zero rows are added up to this many */
    uint32_t flags;      /* enum rk_param_flags; vectors get RK_PARAM_NO_DECAY by themselves */
    bool is_fused;
};

/* Appends a row and returns its index. The caller has checked that the parts divide the split dimension. */
int64_t rk_params_add(struct rk_param_table *table, const struct rk_param_spec *spec, const char *name_fmt,
                      ...) RK_PRINTF(3, 4);
/* lcm(num_shards, 128): what the length of a flat buffer and of its buckets is a multiple of. */
int64_t rk_params_align(int32_t num_shards);
/* Sets all offsets. RESOURCE_EXHAUSTED when the number of elements overflows. */
struct rk_status *rk_params_lay_out(struct rk_param_table *table, int32_t num_shards) RK_NODISCARD;
void rk_params_fini(struct rk_param_table *table);
/* INVALID_ARGUMENT "`what`=SIZE is not divisible by tp=N" with the parameters' owner in the message. */
struct rk_status *rk_params_check_divides(const struct rk_param_table *table, const char *what,
                                          int64_t size) RK_NODISCARD;

static inline const struct rk_param *rk_params_at(const struct rk_param_table *table, int64_t i)
{
    return &table->rows[i].param;
}

/* The tp rank whose copy stands for all ranks that hold `part`: the first of them. */
static inline int32_t rk_param_first_rank(const struct rk_param *param, int32_t part, int32_t tp_size)
{
    return part * (tp_size / param->num_parts);
}

static inline int64_t rk_param_local_elements(const struct rk_param *param)
{
    return param->local_shape[0] * param->local_shape[1];
}

#endif
