/* Private to kernels/cpu/: attention of one query row, used by the packed and the paged operator, so that a
 * row is bit-identical whether its keys come from the batch or from the cache. */
#ifndef RK_CPU_ATTN_INTERNAL_H
#define RK_CPU_ATTN_INTERNAL_H

#include "kernels/cpu/cpu_internal.h"

/* Keys and values of one kv head, and one query, in f64. All arrays are in scratch memory. */
struct rk_attn {
    int64_t head_dim, v_head_dim, padded_dim; /* v_head_dim padded to RK_PANEL with zeros */
    double scale;
    double *panels; /* keys, [num_panels, head_dim, RK_PANEL] */
    double *values; /* [num_keys, padded_dim] */
    double *scores; /* one per key, rounded up to a panel */
    double *query;  /* [head_dim]: set by the caller after the keys */
    double *out;    /* [padded_dim] */
};

/* Number of doubles of scratch for num_keys keys. */
int64_t rk_attn_scratch(int64_t num_keys, int64_t head_dim, int64_t v_head_dim);
void rk_attn_init(struct rk_attn *attn, double *scratch, int64_t num_keys, int64_t head_dim,
                  int64_t v_head_dim);
void rk_attn_set_key(struct rk_attn *attn, int64_t j, const void *k, const void *v, rk_dtype_t dtype);
/* out = sum_j softmax_j(scale * query.k[j]) v[j] over begin <= j < end. Returns the log-sum-exp. */
double rk_attn_row(struct rk_attn *attn, int64_t begin, int64_t end);

/* First key that the query at `position` attends to. */
static inline int64_t rk_attn_first_key(int64_t position, int32_t window)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
}

/* One sequence of a packed call. Query i is at position num_keys - num_queries + i, key j at j. */
struct rk_attn_segment {
    int64_t first_query, num_queries; /* rows of q */
    int64_t first_key, num_keys;      /* rows of k and v; num_keys 0: skipped */
};

struct rk_attn_segment rk_attn_segment_of(const struct rk_attn_varlen_args *args, int64_t seq);
/* Checks that the values of cu_seqlens, k_begin and k_lens fit the tensors; is_disjoint: and that no two
 * segments share a key. */
struct rk_status *rk_attn_check_segments(const char *op, const struct rk_attn_varlen_args *args,
                                         bool is_disjoint) RK_NODISCARD;
int64_t rk_attn_most_keys(const struct rk_attn_varlen_args *args); /* of a segment */

double rk_attn_work(const struct rk_attn_varlen_args *args); /* of the forward pass, for rk_cpu_num_threads */

static inline int64_t rk_attn_num_segments(const struct rk_attn_varlen_args *args)
{
    return args->cu_seqlens.shape[0] - 1;
}

#endif
