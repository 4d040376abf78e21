/* Scatter and gather: the arguments of the ranks, and the combination of their results. */
#include "dispatch/rk_modes.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#include <inttypes.h>

static struct rk_scatter *scatter_new(int32_t num_chunks)
{
    struct rk_scatter *scatter = rk_calloc(1, sizeof(*scatter));

    scatter->num_chunks = num_chunks;
    scatter->chunks = rk_calloc((size_t)num_chunks, sizeof(*scatter->chunks));
    return scatter;
}

/* Chunks that are one object are consecutive. */
void rk_scatter_destroy(struct rk_scatter *scatter)
{
    if (!scatter)
        return;
    for (int32_t i = 0; i < scatter->num_chunks; i++) {
        if (i == 0 || scatter->chunks[i] != scatter->chunks[i - 1])
            rk_batch_destroy(scatter->chunks[i]);
    }
    rk_free(scatter->chunks);
    rk_free(scatter);
}

/* The caller's batch is not changed: padding makes a new one. */
static struct rk_status *cut_padded(struct rk_scatter *scatter, const struct rk_batch *batch)
{
    int64_t rest = rk_batch_num_rows(batch) % scatter->num_chunks;
    int64_t num_padded = rest ? scatter->num_chunks - rest : 0;
    struct rk_batch *padded;
    struct rk_status *st;

    RK_TRY(rk_batch_pad(&padded, batch, num_padded, false));
    st = rk_batch_chunk(scatter->chunks, padded, scatter->num_chunks);
    rk_batch_destroy(padded);
    scatter->num_padded = num_padded;
    return st;
}

static struct rk_status *share(struct rk_scatter *scatter, const struct rk_batch *batch)
{
    RK_TRY(rk_batch_clone(&scatter->chunks[0], batch));
    for (int32_t i = 1; i < scatter->num_chunks; i++)
        scatter->chunks[i] = scatter->chunks[0];
    return NULL;
}

struct rk_status *rk_scatter_batch(struct rk_scatter **out, const struct rk_dispatch *dispatch,
                                   const struct rk_batch *batch)
{
    struct rk_scatter *scatter;
    struct rk_status *st;

    *out = NULL;
    if (dispatch->payload == RK_PAYLOAD_ITEMS)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s takes a list of %d items, got one batch", dispatch->mode,
                       dispatch->num_chunks);
    scatter = scatter_new(dispatch->num_chunks);
    if (dispatch->payload == RK_PAYLOAD_VALUE)
        st = share(scatter, batch);
    else if (dispatch->pads)
        st = cut_padded(scatter, batch);
    else
        st = rk_batch_chunk(scatter->chunks, batch, scatter->num_chunks);
    if (st) {
        rk_scatter_destroy(scatter);
        return RK_WRAP(st, "%s", dispatch->mode);
    }
    *out = scatter;
    return NULL;
}

struct rk_status *rk_scatter_items(struct rk_scatter **out, const struct rk_dispatch *dispatch,
                                   const struct rk_batch *const *items, int64_t num_items)
{
    struct rk_scatter *scatter;

    *out = NULL;
    if (dispatch->payload != RK_PAYLOAD_ITEMS && dispatch->payload != RK_PAYLOAD_VALUE)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s takes one batch, got a list of items", dispatch->mode);
    if (num_items != dispatch->num_chunks)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s takes exactly %d items, got %" PRId64, dispatch->mode,
                       dispatch->num_chunks, num_items);
    scatter = scatter_new(dispatch->num_chunks);
    for (int32_t i = 0; i < scatter->num_chunks; i++) {
        struct rk_status *st = rk_batch_clone(&scatter->chunks[i], items[i]);

        if (st) {
            rk_scatter_destroy(scatter);
            return st;
        }
    }
    *out = scatter;
    return NULL;
}

struct rk_status *rk_gather_batch(struct rk_batch **out, const struct rk_dispatch *dispatch,
                                  struct rk_batch *const *outputs, int64_t num_padded)
{
    const struct rk_batch **parts;
    struct rk_batch *whole = NULL;
    struct rk_status *st = NULL;

    *out = NULL;
    RK_ASSERT(dispatch->payload == RK_PAYLOAD_PROTO);
    parts = rk_calloc((size_t)dispatch->num_collected, sizeof(*parts));
    for (int32_t i = 0; i < dispatch->num_collected; i++) {
        parts[i] = outputs[dispatch->collected[i]];
        if (!parts[i])
            RK_TRY_GOTO(st,
                        RK_FAIL(RK_INVALID_ARGUMENT, "%s: the output of rank %d is missing", dispatch->mode,
                                dispatch->collected[i]),
                        out);
    }
    RK_TRY_GOTO(st, rk_batch_concat(&whole, parts, dispatch->num_collected), out);
    /* An update returns metrics and no rows: nothing to trim. */
    RK_TRY_GOTO(st, rk_batch_unpad(out, whole, rk_batch_num_rows(whole) ? num_padded : 0), out);
out:
    rk_batch_destroy(whole);
    rk_free(parts);
    return st;
}
