/* This rank's part of a packed micro-batch under context parallelism. Callers pass the whole micro-batch on
 * every cp rank: tokens, labels and ids are sliced here and outputs are gathered (labels.c), so all cp ranks
 * compute the same loss and run the backward pass with the gradients of their own tokens. */
#include "engine/model/model.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"

/* The whole micro-batch with padding; all arrays are [cu_seqlens[num_seqs]]. */
struct padded {
    int32_t *cu_seqlens;
    int32_t *tokens, *positions;
    int32_t *sources; /* index of the caller's token; -1: padding */
};

/* The slices of all ranks, on the host. */
struct cut {
    struct rk_zigzag zigzag;
    struct padded padded;
    int32_t *to_whole, *to_ranks;
    int32_t *tokens; /* as in struct rk_context */
    int32_t num_keys;
};

static int32_t size_of(const struct rk_context *context)
{
    return rk_comm_group_size(context->group);
}

/* Warns when more than half of the computed tokens are padding: the sequences are too short for the cp
 * size. */
static void warn_of_padding(struct rk_model_core *core, const struct rk_packed *packed, int64_t num_padded)
{
    if (core->has_warned_of_padding || num_padded <= 2 * packed->num_tokens)
        return;
    core->has_warned_of_padding = true;
    RK_WARN("context parallelism pads %lld tokens of %d sequences to %lld; most tokens of a pass are "
            "padding: use a smaller context_parallel_size for sequences this short",
            (long long)packed->num_tokens, packed->num_seqs, (long long)num_padded);
}

static struct rk_status *lay_out(struct cut *cut, const struct rk_pass *pass, struct rk_model_core *core,
                                 const struct rk_packed *packed)
{
    int32_t cp_size = size_of(pass->context), *cu_seqlens;
    int32_t sp_size = pass->splits_rows ? rk_comm_group_size(pass->tp) : 1;
    int64_t end = 0;

    RK_TRY(rk_pass_alloc_host(pass, &cu_seqlens, packed->num_seqs + 1, sizeof(*cu_seqlens)));
    for (int32_t s = 0; s < packed->num_seqs; s++) {
        int32_t length = packed->cu_seqlens[s + 1] - packed->cu_seqlens[s];

        end += rk_zigzag_padded_length(length, cp_size, sp_size);
        if (end > INT32_MAX)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "a micro-batch of %d sequences, each padded to a multiple of %d tokens, has 2^31 "
                           "tokens or more; expected fewer",
                           packed->num_seqs, 2 * cp_size * sp_size);
        cu_seqlens[s + 1] = (int32_t)end;
    }
    cut->padded.cu_seqlens = cu_seqlens;
    cut->zigzag =
        (struct rk_zigzag){.cp_size = cp_size, .num_seqs = packed->num_seqs, .cu_seqlens = cu_seqlens};
    cut->num_keys = (int32_t)end;
    warn_of_padding(core, packed, end);
    return NULL;
}

/* Positions of padding continue those of the sequence up to the last position; no other token attends to
 * padding. */
static void pad_sequence(struct padded *padded, const struct rk_packed *packed, int32_t s,
                         int64_t num_positions)
{
    int32_t from = packed->cu_seqlens[s], end = packed->cu_seqlens[s + 1];

    for (int32_t i = padded->cu_seqlens[s]; i < padded->cu_seqlens[s + 1]; i++, from++) {
        bool is_token = from < end;

        padded->sources[i] = is_token ? from : -1;
        padded->tokens[i] = is_token ? packed->tokens[from] : 0;
        padded->positions[i] =
            is_token ? packed->positions[from]
                     : (int32_t)RK_MIN((int64_t)padded->positions[i - 1] + 1, num_positions - 1);
    }
}

static struct rk_status *pad(struct cut *cut, const struct rk_pass *pass, const struct rk_packed *packed,
                             int64_t num_positions)
{
    struct padded *padded = &cut->padded;

    RK_TRY(rk_pass_alloc_host(pass, &padded->tokens, cut->num_keys, sizeof(int32_t)));
    RK_TRY(rk_pass_alloc_host(pass, &padded->positions, cut->num_keys, sizeof(int32_t)));
    RK_TRY(rk_pass_alloc_host(pass, &padded->sources, cut->num_keys, sizeof(int32_t)));
    for (int32_t s = 0; s < packed->num_seqs; s++)
        pad_sequence(padded, packed, s, num_positions);
    return NULL;
}

/* Lists the rows of all ranks, in rank order. */
static struct rk_status *divide(struct cut *cut, const struct rk_pass *pass)
{
    int32_t num_rows = rk_zigzag_num_rows(&cut->zigzag);

    RK_TRY(rk_pass_alloc_host(pass, &cut->to_whole, cut->num_keys, sizeof(int32_t)));
    RK_TRY(rk_pass_alloc_host(pass, &cut->to_ranks, cut->num_keys, sizeof(int32_t)));
    RK_TRY(rk_pass_alloc_host(pass, &cut->tokens, cut->num_keys, sizeof(int32_t)));
    rk_zigzag_gathered_rows(&cut->zigzag, cut->to_whole);
    for (int32_t rank = 0; rank < cut->zigzag.cp_size; rank++)
        rk_zigzag_rows(&cut->zigzag, rank, cut->to_ranks + (int64_t)rank * num_rows);
    for (int32_t i = 0; i < cut->num_keys; i++)
        cut->tokens[i] = cut->padded.sources[cut->to_ranks[i]];
    return NULL;
}

static struct rk_status *upload(const struct rk_pass *pass, rk_tensor_t *out, const int32_t *values,
                                int64_t count)
{
    return rk_step_upload(pass->kept, pass->stream, out, RK_DTYPE_I32, values, count);
}

/* Lists the segments of attention for this rank's chunks. */
static struct rk_status *list_segments(const struct cut *cut, struct rk_pass *pass,
                                       struct rk_context *context)
{
    static const unsigned halves[] = {RK_ZIGZAG_EARLY, RK_ZIGZAG_LATE, RK_ZIGZAG_BOTH};
    int64_t count = 2 * (int64_t)cut->zigzag.num_seqs;
    struct rk_zigzag_segments segments;

    RK_TRY(rk_pass_alloc_host(pass, &segments.cu_seqlens, count + 1, sizeof(int32_t)));
    RK_TRY(rk_pass_alloc_host(pass, &segments.k_begin, count, sizeof(int32_t)));
    RK_TRY(rk_pass_alloc_host(pass, &segments.k_lens, count, sizeof(int32_t)));
    for (size_t i = 0; i < RK_ARRAY_LEN(halves); i++) {
        rk_zigzag_list_segments(&cut->zigzag, rk_comm_group_rank(context->group), halves[i], &segments);
        RK_TRY(upload(pass, &context->k_lens[halves[i]], segments.k_lens, count));
    }
    for (int64_t i = 0; i < count; i++)
        pass->max_seqlen = RK_MAX(pass->max_seqlen, segments.cu_seqlens[i + 1] - segments.cu_seqlens[i]);
    RK_TRY(upload(pass, &context->k_begin, segments.k_begin, count));
    return upload(pass, &pass->cu_seqlens, segments.cu_seqlens, count + 1);
}

/* Copies this rank's tokens and positions to the device. */
static struct rk_status *upload_rows(const struct cut *cut, struct rk_pass *pass,
                                     const struct rk_model_core *core, const struct rk_packed *packed)
{
    int64_t first = rk_comm_group_rank(pass->context->group) * pass->num_tokens;
    const int32_t *rows = cut->to_ranks + first;
    int32_t *tokens, *positions;

    RK_TRY(rk_pass_alloc_host(pass, &tokens, pass->num_tokens, sizeof(*tokens)));
    RK_TRY(rk_pass_alloc_host(pass, &positions, pass->num_tokens, sizeof(*positions)));
    for (int64_t i = 0; i < pass->num_tokens; i++) {
        tokens[i] = cut->padded.tokens[rows[i]];
        positions[i] = cut->padded.positions[rows[i]];
    }
    RK_TRY(rk_model_upload_routes(core, pass, packed, cut->tokens + first));
    RK_TRY(upload(pass, &pass->tokens, tokens, pass->num_tokens));
    return upload(pass, &pass->positions, positions, pass->num_tokens);
}

struct rk_status *rk_model_cut_packed(struct rk_model_core *core, struct rk_pass *pass,
                                      const struct rk_packed *packed)
{
    struct rk_context *context;
    struct cut cut;

    RK_TRY(rk_pass_alloc_host(pass, &context, 1, sizeof(*context)));
    context->group = rk_mesh_comms_group(core->mesh, RK_GROUP_CP);
    pass->context = context;
    RK_TRY(lay_out(&cut, pass, core, packed));
    RK_TRY(pad(&cut, pass, packed, core->config.max_position_embeddings));
    RK_TRY(divide(&cut, pass));
    context->num_keys = cut.num_keys;
    context->tokens = cut.tokens;
    context->rows = cut.to_ranks;
    pass->num_tokens = cut.num_keys / cut.zigzag.cp_size;
    pass->num_rows = pass->num_tokens / (pass->splits_rows ? rk_comm_group_size(pass->tp) : 1);
    RK_TRY(upload(pass, &context->to_whole, cut.to_whole, cut.num_keys));
    RK_TRY(upload(pass, &context->to_ranks, cut.to_ranks, cut.num_keys));
    RK_TRY(upload_rows(&cut, pass, core, packed));
    return list_segments(&cut, pass, context);
}

struct rk_status *rk_model_gather_packed(const struct rk_pass *pass, rk_tensor_t x, int64_t num_tokens,
                                         rk_tensor_t *out)
{
    const struct rk_context *context = pass->context;
    rk_tensor_t whole, index;
    int32_t *rows;

    if (!context) {
        *out = x;
        return NULL;
    }
    RK_TRY(rk_pass_alloc_host(pass, &rows, num_tokens, sizeof(*rows)));
    for (int64_t i = 0; i < context->num_keys; i++) {
        if (context->tokens[i] >= 0)
            rows[context->tokens[i]] = context->rows[i];
    }
    RK_TRY(upload(pass, &index, rows, num_tokens));
    RK_TRY(rk_step_2d(pass->arena, out, x.dtype, num_tokens, x.shape[1]));
    RK_TRY(rk_step_2d(pass->arena, &whole, x.dtype, context->num_keys, x.shape[1]));
    RK_TRY(rk_context_gather(pass, &x, 1, whole));
    return rk_gather_rows(pass->stream, &(struct rk_rows_args){.out = *out, .x = whole, .index = index});
}
