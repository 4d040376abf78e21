/* Attention: from the operators' arguments to the launchers of attn.h. */
#include "kernels/cuda/attention/attn.h"

#include "kernels/cuda/cuda_internal.h"

_Static_assert(ATTN_NUM_COUNTERS == RK_CUDA_COUNTERS, "operators share the counters");

/* In which numbers of tokens are tried for their workspace: the kernels' tiles are as large. */
#define WORKSPACE_STEP_TOKENS 128

static struct rk_cuda_attn_device device_of(const struct rk_cuda_device *dev)
{
    return (struct rk_cuda_attn_device){dev->num_sms, dev->max_shared_bytes, dev->has_sm90a};
}

/* The status of a launch; what a launcher does not take is the caller's mistake, not the device's. */
static struct rk_status *launched(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                  const char *op, rk_tensor_t q, cudaError_t error)
{
    if (error == cudaErrorNotSupported)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: this backend lacks it for %s with head_dim=%lld", op,
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
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: scale=%g, this backend takes only positive ones", op,
                       (double)scale);
    return NULL;
}

/* Offsets inside the launchers are 64-bit, counts are not. */
static struct rk_status *check_counts(const char *op, rk_tensor_t t)
{
    if (rk_tensor_num_elements(t) / t.shape[2] > INT32_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: %lld tokens of %lld heads, this backend takes at most %d rows",
                       op, (long long)t.shape[0], (long long)t.shape[1], INT32_MAX);
    return NULL;
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

    RK_TRY(check_scale("attn_varlen_fwd", args->scale));
    RK_TRY(check_counts("attn_varlen_fwd", args->q));
    RK_TRY(check_counts("attn_varlen_fwd", args->k));
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

    RK_TRY(check_scale("attn_varlen_bwd", args->fwd.scale));
    RK_TRY(check_counts("attn_varlen_bwd", args->fwd.q));
    RK_TRY(check_counts("attn_varlen_bwd", args->fwd.k));
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, rk_cuda_attn_bwd_workspace_bytes(&attn)));
    attn.workspace = stream->scratch.data;
    return launched(dev, stream, "attn_varlen_bwd", args->fwd.q, rk_cuda_attn_bwd(stream->stream, &attn));
}

/* Fewer keys may need more: where they do not fill the chip their query heads are split. */
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
    return (struct rk_cuda_attn_paged_args){
        .device = device_of(dev),
        .dtype = args->q.dtype,
        .num_tokens = (int32_t)args->q.shape[0],
        .num_seqs = (int32_t)args->seq_lens.shape[0],
        .num_heads = (int32_t)args->q.shape[1],
        .num_kv_heads = (int32_t)args->k_cache.shape[1],
        .head_dim = (int32_t)args->q.shape[2],
        .window = args->window,
        .past_is_settled = args->past_is_settled,
        .scale = args->scale,
        .num_blocks = (int32_t)args->k_cache.shape[0],
        .block_size = (int32_t)args->k_cache.shape[2],
        .max_blocks = (int32_t)args->block_table.shape[1],
        .k_cache = args->k_cache.data,
        .v_cache = args->v_cache.data,
        .cache_block_stride = args->k_cache.row_stride,
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

    RK_TRY(check_scale("attn_paged", args->scale));
    RK_TRY(check_counts("attn_paged", args->q));
    if (args->k_cache.row_stride != args->v_cache.row_stride)
        return RK_FAIL(RK_UNIMPLEMENTED, "attn_paged: this backend wants keys and values with equal strides");
    RK_TRY(rk_cuda_reserve(stream, &stream->splits, rk_cuda_attn_paged_workspace_bytes(&attn)));
    attn.workspace = stream->splits.data;
    return launched(dev, stream, "attn_paged", args->q, rk_cuda_attn_paged(stream->stream, &attn));
}

struct rk_workspace rk_cuda_workspace_attn_paged(const void *dev, const struct rk_attn_paged_args *args)
{
    struct rk_cuda_attn_paged_args attn = convert_paged(dev, args);

    return (struct rk_workspace){.kept_bytes = rk_cuda_attn_paged_max_workspace_bytes(&attn)};
}
