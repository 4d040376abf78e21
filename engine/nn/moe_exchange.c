/* Experts on other ranks: each row is sent to the rank of its expert, and its result is sent back, in rounds
 * over buffers of bounded size (moe_exchange_plan.h), so that memory does not depend on the routing.
 *
 * With keeps_rows the buffers of the received rows and of gate and up belong to the layer. If one round is
 * enough, the backward pass finds the rows there. Otherwise, and without keeps_rows, it sends the rows again
 * and recomputes gate and up. Buffers have the same sizes in both cases.
 *
 * The first rows travel on the side stream, beside work that does not depend on them.
 *
 * The result of a token does not depend on the number of rounds. The gradients of an expert's weights are
 * added once per round in which it has rows: one, unless it has more rows than a buffer. A kernel adds the
 * sum of its rows, a chain in registers that begins at 0, to the gradient; a chain over several calls would
 * have to begin with the sum so far, which costs the kernels more than it is worth for such experts. */
#include "engine/nn/moe_exchange_plan.h"
#include "engine/nn/moe_internal.h"

/* Rows of this rank, and the buffer for the rows that its experts receive; both 2-D. */
struct row_pair {
    rk_tensor_t rows, received;
};

/* State of an exchange and of its current round. */
struct exchange {
    const struct rk_pass *pass;
    const struct rk_block *block;
    struct rk_stream *stream; /* of transfers: the side stream, until it is joined */
    struct rk_moe_exchange_plan plan;
    rk_tensor_t row_ids;   /* I32 [R, 1]: the expert of each row of this rank */
    bool overwrites_grads; /* backward: the next rows are the first of a step */
    /* State of the current round. */
    struct rk_moe_span *sent, *received; /* [num_ranks] */
    int64_t count;                       /* rows received */
    rk_tensor_t ids;                     /* I32 [capacity, 1]: their experts */
    rk_tensor_t order, places; /* I32: the received row that is the i-th by expert, and the inverse */
    rk_tensor_t offsets;       /* I32 [num_experts + 1]: first row of each expert */
};

static rk_tensor_t as_column(rk_tensor_t t)
{
    return rk_tensor_2d(t.data, t.dtype, rk_tensor_num_elements(t), 1);
}

static rk_tensor_t as_list(rk_tensor_t t)
{
    return rk_tensor_1d(t.data, t.dtype, rk_tensor_num_elements(t));
}

/* --- rounds --- */

/* A dry run has no routing. It assumes that all ranks send all of their rows to one expert of this rank. */
static void fill_offsets(const struct exchange *ex, int32_t *offsets, int64_t num_experts, int64_t num_rows)
{
    for (int32_t r = 0; r < ex->plan.num_ranks; r++) {
        for (int64_t e = 0; e <= num_experts; e++)
            *offsets++ = e > ex->plan.rank * ex->plan.experts_per_rank ? (int32_t)num_rows : 0;
    }
}

/* Enqueues the gathering of the offsets of all ranks to host memory, on the stream of transfers. */
static struct rk_status *start_offsets(struct exchange *ex, const struct rk_moe_saved *saved,
                                       int32_t **offsets)
{
    int64_t num_experts = rk_tensor_num_elements(saved->offsets) - 1;
    const struct rk_pass *pass = ex->pass;
    rk_tensor_t all;

    RK_TRY(rk_pass_alloc_host(pass, offsets, ex->plan.num_ranks * (num_experts + 1), sizeof(**offsets)));
    RK_TRY(rk_step_2d(pass->arena, &all, RK_DTYPE_I32, ex->plan.num_ranks, num_experts + 1));
    RK_TRY(rk_comm_all_gather(pass->ep, ex->stream, as_list(all), as_list(saved->offsets)));
    return rk_stream_copy(ex->stream, *offsets, all.data, rk_tensor_bytes(all), RK_COPY_D2H);
}

/* Sets the offsets of the plan; runs `beside` until they have come. */
static struct rk_status *share_offsets(struct exchange *ex, const struct rk_moe_saved *saved,
                                       const struct rk_moe_beside *beside)
{
    int64_t num_experts = rk_tensor_num_elements(saved->offsets) - 1;
    int32_t *offsets = NULL;

    ex->plan.offsets = saved->offsets_of_all;
    if (!saved->offsets_of_all)
        RK_TRY(start_offsets(ex, saved, &offsets));
    if (beside)
        RK_TRY(beside->run(beside->user));
    if (saved->offsets_of_all)
        return NULL;
    RK_TRY(rk_stream_sync(ex->stream));
    if (rk_device_is_dry(rk_stream_device(ex->stream)))
        fill_offsets(ex, offsets, num_experts, rk_tensor_num_elements(saved->tokens));
    ex->plan.offsets = offsets;
    return NULL;
}

/* The default is RK_MOE_DISPATCH_FACTOR times the largest number of rows on a rank. */
static int64_t capacity_of(const struct exchange *ex, const struct rk_moe *moe)
{
    int64_t most = 0, experts = moe->config.num_experts;

    for (int32_t r = 0; r < ex->plan.num_ranks; r++)
        most = RK_MAX(most, ex->plan.offsets[r * (experts + 1) + experts]);
    return moe->dispatch_rows > 0 ? moe->dispatch_rows : RK_MAX(RK_MOE_DISPATCH_FACTOR * most, 1);
}

/* The experts of this rank's rows. */
static struct rk_status *make_row_ids(struct exchange *ex, const struct rk_moe_saved *saved)
{
    RK_TRY(rk_step_2d(ex->pass->arena, &ex->row_ids, RK_DTYPE_I32, rk_tensor_num_elements(saved->tokens), 1));
    if (saved->has_received)
        return NULL;
    return rk_scatter_rows(ex->pass->stream, &(struct rk_rows_args){.out = ex->row_ids,
                                                                    .x = as_column(saved->ids),
                                                                    .index = as_list(saved->places)});
}

/* Ids of the experts of the rows of a round, and their order. */
static struct rk_status *make_ids(struct exchange *ex, const struct rk_moe_saved *saved, int64_t num_experts)
{
    struct rk_step_arena *arena = ex->pass->arena;
    int64_t capacity = ex->plan.capacity;

    RK_TRY(rk_step_2d(arena, &ex->ids, RK_DTYPE_I32, capacity, 1));
    if (saved->received.x.data) {
        ex->places = saved->received.places;
        ex->order = as_list(saved->received.order);
        ex->offsets = as_list(saved->received.offsets);
        return NULL;
    }
    RK_TRY(rk_step_2d(arena, &ex->places, RK_DTYPE_I32, capacity, 1));
    RK_TRY(rk_step_1d(arena, &ex->order, RK_DTYPE_I32, capacity));
    return rk_step_1d(arena, &ex->offsets, RK_DTYPE_I32, num_experts + 1);
}

/* Work on the pass's stream that the transfers need is enqueued before. */
static struct rk_status *begin(struct exchange *ex, const struct rk_pass *pass, const struct rk_block *block,
                               const struct rk_moe_saved *saved, const struct rk_moe_beside *beside)
{
    const struct rk_moe *moe = block->own;
    int32_t num_ranks = rk_comm_group_size(pass->ep);
    struct rk_moe_exchange_plan *plan = &ex->plan;

    *ex = (struct exchange){.pass = pass, .block = block};
    *plan = (struct rk_moe_exchange_plan){.num_ranks = num_ranks,
                                          .rank = rk_comm_group_rank(pass->ep),
                                          .experts_per_rank = moe->config.num_experts / num_ranks};
    RK_TRY(make_row_ids(ex, saved));
    RK_TRY(rk_pass_fork(pass, &ex->stream));
    RK_TRY(share_offsets(ex, saved, beside));
    plan->capacity = capacity_of(ex, moe);
    rk_moe_exchange_plan_init(plan);
    RK_TRY(rk_pass_alloc_host(pass, &ex->sent, num_ranks, sizeof(*ex->sent)));
    RK_TRY(rk_pass_alloc_host(pass, &ex->received, num_ranks, sizeof(*ex->received)));
    return make_ids(ex, saved, moe->config.num_experts);
}

/* Transfers are on the pass's stream from here on. */
static struct rk_status *join(struct exchange *ex)
{
    if (ex->stream == ex->pass->stream)
        return NULL;
    ex->stream = ex->pass->stream;
    return rk_pass_join(ex->pass);
}

/* In a dry run all rounds but the last have the same rows, and no later one needs more memory than the
 * first. */
static int64_t rounds_to_run(const struct exchange *ex)
{
    int64_t num_rounds = ex->plan.num_rounds;

    return rk_device_is_dry(rk_stream_device(ex->stream)) ? RK_MIN(num_rounds, 1) : num_rounds;
}

static void begin_round(struct exchange *ex, int64_t round)
{
    const struct rk_moe_exchange_plan *plan = &ex->plan;

    ex->count = 0;
    for (int32_t r = 0; r < plan->num_ranks; r++) {
        ex->sent[r] = rk_moe_exchange_span(plan, plan->rank, r, round);
        ex->received[r] = rk_moe_exchange_span(plan, r, plan->rank, round);
        ex->count += ex->received[r].count;
    }
}

/* --- rows of a round --- */

/* A buffer for the rows of a round. */
static struct rk_status *make(const struct exchange *ex, rk_dtype_t dtype, int64_t columns, rk_tensor_t *out)
{
    return rk_step_2d(ex->pass->arena, out, dtype, ex->plan.capacity, columns);
}

static rk_tensor_t of_round(const struct exchange *ex, rk_tensor_t t)
{
    return rk_tensor_rows(t, 0, ex->count);
}

static struct rk_status *move(const struct exchange *ex, rk_tensor_t from, rk_tensor_t to, int32_t peer)
{
    struct rk_stream *stream = ex->stream;

    if (peer == ex->plan.rank)
        return from.shape[0] > 0
                   ? rk_stream_copy(stream, to.data, from.data, rk_tensor_bytes(from), RK_COPY_D2D)
                   : NULL;
    if (from.shape[0] > 0)
        RK_TRY(rk_comm_send(ex->pass->ep, stream, from, peer));
    return to.shape[0] > 0 ? rk_comm_recv(ex->pass->ep, stream, to, peer) : NULL;
}

/* Sends and receives the rows of one pair, in one direction. */
static struct rk_status *move_pair(const struct exchange *ex, const struct row_pair *pair, bool comes_back)
{
    int64_t before = 0;

    for (int32_t r = 0; r < ex->plan.num_ranks; r++) {
        rk_tensor_t mine = rk_tensor_rows(pair->rows, ex->sent[r].begin, ex->sent[r].count);
        rk_tensor_t theirs = rk_tensor_rows(pair->received, before, ex->received[r].count);

        before += ex->received[r].count;
        RK_TRY(comes_back ? move(ex, theirs, mine, r) : move(ex, mine, theirs, r));
    }
    return NULL;
}

/* Moves all pairs in one batch of sends and receives. */
static struct rk_status *move_pairs(const struct exchange *ex, const struct row_pair *pairs, size_t num_pairs,
                                    bool comes_back)
{
    struct rk_status *st = NULL, *end;

    RK_TRY(rk_comm_batch_begin(ex->pass->ep));
    for (size_t i = 0; !st && i < num_pairs; i++)
        st = move_pair(ex, &pairs[i], comes_back);
    end = rk_comm_batch_end(ex->pass->ep);
    return rk_status_first(st, end);
}

/* Sorts the received rows by expert; rows of one expert keep the order in which they were received. */
static struct rk_status *sort_ids(const struct exchange *ex)
{
    return rk_moe_sort(ex->pass->stream, &(struct rk_moe_sort_args){.offsets = ex->offsets,
                                                                    .tokens = of_round(ex, ex->order),
                                                                    .places = of_round(ex, ex->places),
                                                                    .ids = of_round(ex, ex->ids)});
}

/* sorted [count, n] = the received rows in that order, or the inverse. */
static struct rk_status *sort(const struct exchange *ex, rk_tensor_t received, rk_tensor_t sorted)
{
    return rk_gather_rows(ex->pass->stream, &(struct rk_rows_args){.out = of_round(ex, sorted),
                                                                   .x = of_round(ex, received),
                                                                   .index = of_round(ex, ex->order)});
}

static struct rk_status *unsort(const struct exchange *ex, rk_tensor_t sorted, rk_tensor_t received)
{
    return rk_gather_rows(ex->pass->stream,
                          &(struct rk_rows_args){.out = of_round(ex, received),
                                                 .x = of_round(ex, sorted),
                                                 .index = of_round(ex, as_list(ex->places))});
}

/* --- forward --- */

/* Buffers of the forward pass, for the rows of one round. */
struct round_buffers {
    rk_tensor_t received, sorted, out, results; /* rows; out: sorted results. Two pairs may be the same */
    rk_tensor_t received_probs, sorted_probs;   /* columns */
    rk_tensor_t gate_up, activated;
};

/* Buffers that the backward pass needs, too: the layer's own if it keeps rows. */
static struct rk_status *make_buffers(const struct exchange *ex, const struct rk_moe_saved *saved,
                                      struct round_buffers *buffers)
{
    const struct rk_moe *moe = ex->block->own;
    rk_dtype_t dtype = ex->pass->dtype, stat_dtype = ex->pass->stat_dtype;

    RK_TRY(make(ex, dtype, moe->hidden_size, &buffers->received));
    RK_TRY(make(ex, stat_dtype, 1, &buffers->received_probs));
    RK_TRY(make(ex, dtype, moe->intermediate_size, &buffers->activated));
    if (moe->keeps_rows) {
        buffers->sorted = saved->received.x;
        buffers->sorted_probs = saved->received.probs;
        buffers->gate_up = saved->gate_up;
        return NULL;
    }
    RK_TRY(make(ex, dtype, moe->hidden_size, &buffers->sorted));
    RK_TRY(make(ex, stat_dtype, 1, &buffers->sorted_probs));
    return make(ex, dtype, 2 * moe->intermediate_size, &buffers->gate_up);
}

/* Kept rows are not replaced by results. */
static struct rk_status *make_results(const struct exchange *ex, struct round_buffers *buffers)
{
    const struct rk_moe *moe = ex->block->own;

    buffers->out = moe->keeps_rows ? buffers->received : buffers->sorted;
    buffers->results = buffers->received;
    return moe->keeps_rows ? make(ex, ex->pass->dtype, moe->hidden_size, &buffers->results) : NULL;
}

static struct rk_moe_rows rows_of(const struct exchange *ex, const struct round_buffers *buffers)
{
    int64_t count = ex->plan.experts_per_rank;

    return (struct rk_moe_rows){.offsets = rk_tensor_rows(ex->offsets, ex->plan.rank * count, count + 1),
                                .probs = as_list(of_round(ex, buffers->sorted_probs)),
                                .gate_up = of_round(ex, buffers->gate_up)};
}

/* Computes the results of the received rows, in their order. */
static struct rk_status *compute(const struct exchange *ex, const struct round_buffers *buffers)
{
    struct rk_moe_rows rows = rows_of(ex, buffers);

    if (ex->count == 0)
        return NULL;
    RK_TRY(sort_ids(ex));
    RK_TRY(sort(ex, buffers->received, buffers->sorted));
    RK_TRY(sort(ex, buffers->received_probs, buffers->sorted_probs));
    RK_TRY(rk_moe_experts_fwd(ex->pass, ex->block->own, &rows, of_round(ex, buffers->sorted),
                              of_round(ex, buffers->activated), of_round(ex, buffers->out)));
    return unsort(ex, buffers->out, buffers->results);
}

struct rk_status *rk_moe_exchange_fwd(const struct rk_pass *pass, const struct rk_block *block,
                                      struct rk_moe_saved *saved, rk_tensor_t rows,
                                      const struct rk_moe_beside *beside)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    const struct rk_moe *moe = block->own;
    struct round_buffers buffers = {0};
    struct exchange ex;
    int64_t num_rounds;

    RK_TRY(begin(&ex, pass, block, saved, beside));
    RK_TRY(make_buffers(&ex, saved, &buffers));
    RK_TRY(make_results(&ex, &buffers));
    num_rounds = rounds_to_run(&ex);
    for (int64_t round = 0; round < num_rounds; round++) {
        const struct row_pair there[] = {{rows, buffers.received},
                                         {as_column(saved->row_probs), buffers.received_probs},
                                         {ex.row_ids, ex.ids}};
        const struct row_pair back = {rows, buffers.results};

        begin_round(&ex, round);
        RK_TRY(move_pairs(&ex, there, RK_ARRAY_LEN(there), false));
        RK_TRY(join(&ex));
        RK_TRY(compute(&ex, &buffers));
        RK_TRY(move_pairs(&ex, &back, 1, true));
    }
    if (ex.plan.num_rounds == 0)
        RK_TRY(join(&ex));
    saved->offsets_of_all = ex.plan.offsets;
    saved->has_received = moe->keeps_rows && ex.plan.num_rounds <= 1;
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* --- backward --- */

/* Further buffers of the backward pass. */
struct round_buffers_bwd {
    rk_tensor_t received_dy, sorted_dy; /* rows */
    rk_tensor_t dprobs;                 /* a column, sorted */
};

static struct rk_status *make_buffers_bwd(const struct exchange *ex, struct round_buffers_bwd *buffers)
{
    const struct rk_moe *moe = ex->block->own;

    RK_TRY(make(ex, ex->pass->dtype, moe->hidden_size, &buffers->received_dy));
    RK_TRY(make(ex, ex->pass->dtype, moe->hidden_size, &buffers->sorted_dy));
    return make(ex, ex->pass->stat_dtype, 1, &buffers->dprobs);
}

/* The sorted rows and gate and up, as the forward pass had them. */
static struct rk_status *compute_again(const struct exchange *ex, const struct round_buffers *buffers)
{
    struct rk_moe_rows rows = rows_of(ex, buffers);

    RK_TRY(sort_ids(ex));
    RK_TRY(sort(ex, buffers->received, buffers->sorted));
    RK_TRY(sort(ex, buffers->received_probs, buffers->sorted_probs));
    return rk_moe_experts_fwd(ex->pass, ex->block->own, &rows, of_round(ex, buffers->sorted),
                              of_round(ex, buffers->activated), (rk_tensor_t){0});
}

/* Replaces the received rows of dy by rows of dx, and computes the gradients of the received probabilities.
 */
static struct rk_status *compute_bwd(struct exchange *ex, const struct round_buffers *buffers,
                                     const struct round_buffers_bwd *bwd, bool has_received)
{
    struct rk_moe_rows rows = rows_of(ex, buffers);
    const struct rk_moe *moe = ex->block->own;
    rk_tensor_t x = of_round(ex, buffers->sorted), dy = of_round(ex, bwd->sorted_dy);
    rk_tensor_t activated = of_round(ex, buffers->activated), dprobs = as_list(of_round(ex, bwd->dprobs));

    if (ex->count == 0)
        return NULL;
    rows.overwrites_grads = ex->overwrites_grads;
    ex->overwrites_grads = false;
    if (!has_received)
        RK_TRY(compute_again(ex, buffers));
    RK_TRY(sort(ex, bwd->received_dy, bwd->sorted_dy));
    RK_TRY(rk_moe_experts_bwd_down(ex->pass, moe, &rows, dy, activated, dprobs));
    RK_TRY(rk_moe_experts_bwd_up(ex->pass, moe, &rows, x, x));
    RK_TRY(unsort(ex, buffers->sorted, bwd->received_dy));
    return unsort(ex, bwd->dprobs, buffers->received_probs);
}

struct rk_status *rk_moe_exchange_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                      const struct rk_moe_saved *saved,
                                      const struct rk_moe_exchange_grads *grads,
                                      const struct rk_moe_beside *beside)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    struct round_buffers buffers = {0};
    struct round_buffers_bwd bwd = {0};
    struct exchange ex;
    int64_t num_rounds;

    RK_TRY(begin(&ex, pass, block, saved, beside));
    RK_TRY(make_buffers(&ex, saved, &buffers));
    RK_TRY(make_buffers_bwd(&ex, &bwd));
    ex.overwrites_grads = pass->overwrites_grads;
    num_rounds = rounds_to_run(&ex);
    for (int64_t round = 0; round < num_rounds; round++) {
        const struct row_pair there[] = {{grads->dy_rows, bwd.received_dy},
                                         {grads->x_rows, buffers.received},
                                         {as_column(saved->row_probs), buffers.received_probs},
                                         {ex.row_ids, ex.ids}};
        const struct row_pair back[] = {{grads->dy_rows, bwd.received_dy},
                                        {as_column(grads->drow_probs), buffers.received_probs}};

        begin_round(&ex, round);
        RK_TRY(move_pairs(&ex, there, saved->has_received ? 1 : RK_ARRAY_LEN(there), false));
        RK_TRY(join(&ex));
        RK_TRY(compute_bwd(&ex, &buffers, &bwd, saved->has_received));
        RK_TRY(move_pairs(&ex, back, RK_ARRAY_LEN(back), true));
    }
    if (ex.plan.num_rounds == 0)
        RK_TRY(join(&ex));
    if (ex.overwrites_grads)
        RK_TRY(rk_moe_experts_clear_grads(pass, block->own));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
