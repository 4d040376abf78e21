/* Attention: passes the operators' arguments to the launchers of attn.h. */
#include "kernels/cuda/attention/attn.h"

#include "kernels/cuda/cuda_internal.h"

_Static_assert(ATTN_NUM_COUNTERS == RK_CUDA_COUNTERS, "operators share the counters");

/* Step in which numbers of tokens are tried for their workspace: the size of the kernels' tiles. */
#define WORKSPACE_STEP_TOKENS 128

static struct rk_cuda_attn_device device_of(const struct rk_cuda_device *dev)
{
    return (struct rk_cuda_attn_device){dev->num_sms, dev->max_shared_bytes, dev->has_sm90a};
}

/* The status of a launch; arguments that a launcher rejects are an error of the caller, not of the device. */
static struct rk_status *launched(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                  const char *op, rk_tensor_t q, cudaError_t error)
{
    if (error == cudaErrorNotSupported)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: this backend does not support %s with head_dim=%lld", op,
                       rk_dtype_name(q.dtype), (long long)q.shape[2]);
    if (error == cudaErrorMisalignedAddress)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: rows of q, k, v and out must start at multiples of 16 bytes",
                       op);
    if (error != cudaSuccess)
        return RK_WRAP(rk_cuda_status(error, "launch"), "%s", op);
    return rk_cuda_launched(dev, stream, op);
}

static struct rk_status *check_scale(const char *op, float scale)
{
    if (!(scale > 0))
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: scale=%g, this backend supports only positive values", op,
                       (double)scale);
    return NULL;
}

/* Launchers use 64-bit offsets but 32-bit counts. */
static struct rk_status *check_counts(const char *op, rk_tensor_t t)
{
    if (rk_tensor_num_elements(t) / t.shape[2] > INT32_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "%s: %lld tokens of %lld heads, this backend supports at most %d rows", op,
                       (long long)t.shape[0], (long long)t.shape[1], INT32_MAX);
    return NULL;
}

/* q and k have q's width, v and out have out's width. */
static struct rk_status *check_widths(const char *op, rk_tensor_t q, rk_tensor_t out, int64_t max_head_dim,
                                      int64_t max_v_head_dim)
{
    if (q.shape[2] > max_head_dim)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: q and k have head_dim=%lld, this backend supports at most %lld",
                       op, (long long)q.shape[2], (long long)max_head_dim);
    if (out.shape[2] > max_v_head_dim)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "%s: v and out have v_head_dim=%lld, this backend supports at most %lld", op,
                       (long long)out.shape[2], (long long)max_v_head_dim);
    return NULL;
}

static struct rk_status *check_dtype(const char *op, rk_tensor_t q)
{
    if (q.dtype == RK_DTYPE_F64)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: q is f64, this backend supports f32, bf16 and f16", op);
    return NULL;
}

struct rk_status *rk_cuda_limit_attn_varlen_fwd(const void *dev, const struct rk_attn_varlen_args *args)
{
    (void)dev;
    RK_TRY(check_dtype("attn_varlen_fwd", args->q));
    RK_TRY(check_widths("attn_varlen_fwd", args->q, args->out, ATTN_MAX_HEAD_DIM, ATTN_MAX_V_HEAD_DIM));
    RK_TRY(check_scale("attn_varlen_fwd", args->scale));
    RK_TRY(check_counts("attn_varlen_fwd", args->q));
    return check_counts("attn_varlen_fwd", args->k);
}

struct rk_status *rk_cuda_limit_attn_varlen_bwd(const void *dev, const struct rk_attn_varlen_bwd_args *args)
{
    const struct rk_attn_varlen_args *fwd = &args->fwd;

    (void)dev;
    RK_TRY(check_dtype("attn_varlen_bwd", fwd->q));
    RK_TRY(check_widths("attn_varlen_bwd", fwd->q, fwd->out, ATTN_MAX_BWD_HEAD_DIM, ATTN_MAX_BWD_HEAD_DIM));
    RK_TRY(check_scale("attn_varlen_bwd", fwd->scale));
    RK_TRY(check_counts("attn_varlen_bwd", fwd->q));
    return check_counts("attn_varlen_bwd", fwd->k);
}

struct rk_status *rk_cuda_limit_attn_paged(const void *dev, const struct rk_attn_paged_args *args)
{
    int64_t block_size = args->k_cache.shape[2];

    RK_TRY(check_dtype("attn_paged", args->q));
    RK_TRY(check_widths("attn_paged", args->q, args->out, ATTN_MAX_HEAD_DIM, ATTN_MAX_V_HEAD_DIM));
    RK_TRY(check_scale("attn_paged", args->scale));
    if (args->v_cache.data && args->q.shape[2] == args->out.shape[2] &&
        args->k_cache.row_stride != args->v_cache.row_stride)
        return RK_FAIL(RK_UNIMPLEMENTED, "attn_paged: this backend expects equal strides of k_cache and "
                                         "v_cache if their widths are equal");
    if (device_of(dev).has_sm90a && args->q.dtype == RK_DTYPE_BF16 && args->v_cache.data &&
        args->q.shape[2] == 192 && args->out.shape[2] == 128 &&
        (block_size < 8 || block_size > 128 || (block_size & (block_size - 1))))
        return RK_FAIL(
            RK_UNIMPLEMENTED,
            "attn_paged: cache blocks of %lld tokens, for heads of 192 and 128 this backend expects "
            "8, 16, 32, 64 or 128",
            (long long)block_size);
    return check_counts("attn_paged", args->q);
}

static struct rk_cuda_attn_args convert(const struct rk_cuda_device *dev,
                                        const struct rk_attn_varlen_args *args)
{
    return (struct rk_cuda_attn_args){
        .device = device_of(dev),
        .dtype = args->q.dtype,
        .num_tokens = (int32_t)args->q.shape[0],
        .num_seqs = (int32_t)args->cu_seqlens.shape[0] - 1,
        .num_heads = (int32_t)args->q.shape[1],
        .num_kv_heads = (int32_t)args->k.shape[1],
        .head_dim = (int32_t)args->q.shape[2],
        .v_head_dim = (int32_t)args->out.shape[2],
        .num_keys = (int32_t)args->k.shape[0],
        .window = args->window,
        .scale = args->scale,
        .cu_seqlens = args->cu_seqlens.data,
        .k_begin = args->k_begin.data,
        .k_lens = args->k_lens.data,
        .q = args->q.data,
        .k = args->k.data,
        .v = args->v.data,
        .q_stride = args->q.row_stride,
        .k_stride = args->k.row_stride,
        .v_stride = args->v.row_stride,
        .out = args->out.data,
        .out_stride = args->out.row_stride,
        .lse = args->lse.data,
    };
}

struct rk_status *rk_cuda_op_attn_varlen_fwd(void *dev_handle, void *stream_handle,
                                             const struct rk_attn_varlen_args *args)
{
    const struct rk_cuda_device *dev = dev_handle;
    const struct rk_cuda_stream *stream = stream_handle;
    struct rk_cuda_attn_args attn = convert(dev, args);

    RK_TRY(rk_cuda_limit_attn_varlen_fwd(dev, args));
    return launched(dev, stream, "attn_varlen_fwd", args->q, rk_cuda_attn_fwd(stream->stream, &attn));
}

static struct rk_cuda_attn_bwd_args convert_bwd(const struct rk_cuda_device *dev,
                                                const struct rk_attn_varlen_bwd_args *args)
{
    return (struct rk_cuda_attn_bwd_args){
        .fwd = convert(dev, &args->fwd),
        .dout = args->dout.data,
        .dout_stride = args->dout.row_stride,
        .dq = args->dq.data,
        .dk = args->dk.data,
        .dv = args->dv.data,
        .dq_stride = args->dq.row_stride,
        .dk_stride = args->dk.row_stride,
        .dv_stride = args->dv.row_stride,
    };
}

struct rk_status *rk_cuda_op_attn_varlen_bwd(void *dev_handle, void *stream_handle,
                                             const struct rk_attn_varlen_bwd_args *args)
{
    const struct rk_cuda_device *dev = dev_handle;
    struct rk_cuda_stream *stream = stream_handle;
    struct rk_cuda_attn_bwd_args attn = convert_bwd(dev, args);

    RK_TRY(rk_cuda_limit_attn_varlen_bwd(dev, args));
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, rk_cuda_attn_bwd_workspace_bytes(&attn)));
    attn.workspace = stream->scratch.data;
    return launched(dev, stream, "attn_varlen_bwd", args->fwd.q, rk_cuda_attn_bwd(stream->stream, &attn));
}

/* Fewer keys may need more workspace: if they do not fill the GPU, their query heads are split. */
struct rk_workspace rk_cuda_workspace_attn_varlen_bwd(const void *dev,
                                                      const struct rk_attn_varlen_bwd_args *args)
{
    struct rk_cuda_attn_bwd_args attn = convert_bwd(dev, args);
    struct rk_workspace most = {0};

    for (; attn.fwd.num_keys > 0;
         attn.fwd.num_keys = (attn.fwd.num_keys - 1) / WORKSPACE_STEP_TOKENS * WORKSPACE_STEP_TOKENS) {
        if (!attn.fwd.k_lens)
            attn.fwd.num_tokens = attn.fwd.num_keys;
        most.scratch_bytes = RK_MAX(most.scratch_bytes, rk_cuda_attn_bwd_workspace_bytes(&attn));
    }
    return most;
}

static struct rk_cuda_attn_paged_args convert_paged(const struct rk_cuda_device *dev,
                                                    const struct rk_attn_paged_args *args)
{
    rk_tensor_t v_cache = args->v_cache.data ? args->v_cache : args->k_cache;

    return (struct rk_cuda_attn_paged_args){
        .device = device_of(dev),
        .dtype = args->q.dtype,
        .num_tokens = (int32_t)args->q.shape[0],
        .num_seqs = (int32_t)args->seq_lens.shape[0],
        .num_heads = (int32_t)args->q.shape[1],
        .num_kv_heads = (int32_t)args->k_cache.shape[1],
        .head_dim = (int32_t)args->q.shape[2],
        .v_head_dim = (int32_t)args->out.shape[2],
        .window = args->window,
        .past_is_settled = args->past_is_settled,
        .scale = args->scale,
        .num_blocks = (int32_t)args->k_cache.shape[0],
        .block_size = (int32_t)args->k_cache.shape[2],
        .max_blocks = (int32_t)args->block_table.shape[1],
        .k_cache = args->k_cache.data,
        .v_cache = v_cache.data,
        .cache_block_stride = args->k_cache.row_stride,
        .v_cache_block_stride = v_cache.row_stride,
        .v_row_stride = (int32_t)v_cache.shape[3],
        .block_table = args->block_table.data,
        .cu_q = args->cu_q.data,
        .seq_lens = args->seq_lens.data,
        .block_table_stride = args->block_table.row_stride,
        .q = args->q.data,
        .out = args->out.data,
        .q_stride = args->q.row_stride,
        .out_stride = args->out.row_stride,
    };
}

struct rk_status *rk_cuda_op_attn_paged(void *dev_handle, void *stream_handle,
                                        const struct rk_attn_paged_args *args)
{
    const struct rk_cuda_device *dev = dev_handle;
    struct rk_cuda_stream *stream = stream_handle;
    struct rk_cuda_attn_paged_args attn = convert_paged(dev, args);

    RK_TRY(rk_cuda_limit_attn_paged(dev, args));
    RK_TRY(rk_cuda_reserve(stream, &stream->splits, rk_cuda_attn_paged_workspace_bytes(&attn)));
    attn.workspace = stream->splits.data;
    return launched(dev, stream, "attn_paged", args->q, rk_cuda_attn_paged(stream->stream, &attn));
}

struct rk_workspace rk_cuda_workspace_attn_paged(const void *dev, const struct rk_attn_paged_args *args)
{
    struct rk_cuda_attn_paged_args attn = convert_paged(dev, args);

    return (struct rk_workspace){.kept_bytes = rk_cuda_attn_paged_max_workspace_bytes(&attn)};
}
