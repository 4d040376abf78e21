/* The sequences of packed attention: for each its rows of q and its rows of k. */
#include "kernels/cpu/attn_internal.h"

struct rk_attn_segment rk_attn_segment_of(const struct rk_attn_varlen_args *args, int64_t seq)
{
    const int32_t *cu_seqlens = rk_cpu_i32(args->cu_seqlens);
    struct rk_attn_segment segment = {
        .first_query = cu_seqlens[seq],
        .num_queries = cu_seqlens[seq + 1] - cu_seqlens[seq],
    };

    segment.first_key = segment.first_query;
    segment.num_keys = segment.num_queries;
    if (args->k_begin.data) {
        segment.first_key = rk_cpu_i32(args->k_begin)[seq];
        segment.num_keys = rk_cpu_i32(args->k_lens)[seq];
    }
    return segment;
}

int64_t rk_attn_most_keys(const struct rk_attn_varlen_args *args)
{
    int64_t most = 0;

    for (int64_t s = 0; s < rk_attn_num_segments(args); s++)
        most = RK_MAX(most, rk_attn_segment_of(args, s).num_keys);
    return most;
}

double rk_attn_work(const struct rk_attn_varlen_args *args)
{
    double num_scores = 0.0;

    for (int64_t s = 0; s < rk_attn_num_segments(args); s++) {
        struct rk_attn_segment segment = rk_attn_segment_of(args, s);

        num_scores += (double)segment.num_queries * (double)segment.num_keys * (double)args->q.shape[1];
    }
    return num_scores * (RK_WORK_EXP + RK_WORK_F64 * (double)(args->q.shape[2] + args->out.shape[2]));
}

static struct rk_status *check_range(const char *op, const struct rk_attn_varlen_args *args, int64_t seq)
{
    struct rk_attn_segment segment = rk_attn_segment_of(args, seq);
    int64_t num_rows = args->k.shape[0];

    if (segment.num_keys == 0)
        return NULL;
    if (segment.first_key < 0 || segment.first_key > num_rows)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: k_begin[%lld]=%lld, expected 0 to %lld", op, (long long)seq,
                       (long long)segment.first_key, (long long)num_rows);
    if (segment.num_keys < segment.num_queries || segment.num_keys > num_rows - segment.first_key)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: k_lens[%lld]=%lld, expected 0 or %lld to %lld", op,
                       (long long)seq, (long long)segment.num_keys, (long long)segment.num_queries,
                       (long long)(num_rows - segment.first_key));
    return NULL;
}

/* Compares with all earlier segments. */
static struct rk_status *check_disjoint(const char *op, const struct rk_attn_varlen_args *args, int64_t seq)
{
    struct rk_attn_segment own = rk_attn_segment_of(args, seq);

    for (int64_t s = 0; s < seq; s++) {
        struct rk_attn_segment other = rk_attn_segment_of(args, s);

        if (RK_MAX(own.first_key, other.first_key) <
            RK_MIN(own.first_key + own.num_keys, other.first_key + other.num_keys))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "%s: keys %lld to %lld of segment %lld overlap those of segment %lld, expected "
                           "each key in one segment",
                           op, (long long)own.first_key, (long long)(own.first_key + own.num_keys),
                           (long long)seq, (long long)s);
    }
    return NULL;
}

struct rk_status *rk_attn_check_segments(const char *op, const struct rk_attn_varlen_args *args,
                                         bool is_disjoint)
{
    RK_TRY(rk_cpu_check_prefix_sums(op, "cu_seqlens", args->cu_seqlens, args->q.shape[0], args->max_seqlen));
    for (int64_t s = 0; args->k_begin.data && s < rk_attn_num_segments(args); s++) {
        RK_TRY(check_range(op, args, s));
        if (is_disjoint)
            RK_TRY(check_disjoint(op, args, s));
    }
    return NULL;
}
