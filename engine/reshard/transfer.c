/* Executes moves: within the rank first, then round by round through two buckets. In a round a rank packs one
 * message per peer, exchanges messages with all peers at once, and unpacks. */
#include "engine/reshard/reshard.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"

/* One message to or from one peer, in a bucket. */
struct message {
    int64_t begin, bytes;
};

/* Moves of one round: consecutive in the plan, interleaved with moves within ranks. */
struct round {
    struct rk_reshard_run *run;
    int32_t number;
    const struct rk_reshard_move *first, *end;
    struct message *sends, *recvs; /* [ranks of the group] */
};

rk_tensor_t rk_reshard_view(const struct rk_model_core *core, int64_t row, const struct rk_param_box *box)
{
    const struct rk_placement *placement = rk_params_placement(&core->params, row);
    struct rk_param_box held = rk_param_get_box(rk_params_at(&core->params, row), placement);
    char *data = (char *)core->values + (size_t)placement->offset * rk_dtype_bytes(core->dtype);
    rk_tensor_t local = rk_tensor_2d(data, core->dtype, placement->local_shape[0], placement->local_shape[1]);

    RK_ASSERT(box->begin[0] >= held.begin[0]);
    RK_ASSERT(box->begin[1] >= held.begin[1]);
    return rk_tensor_cols(rk_tensor_rows(local, box->begin[0] - held.begin[0], box->shape[0]),
                          box->begin[1] - held.begin[1], box->shape[1]);
}

static struct rk_status *copy(struct rk_stream *stream, rk_tensor_t out, rk_tensor_t x)
{
    if (out.dtype == x.dtype && rk_tensor_is_contiguous(out) && rk_tensor_is_contiguous(x))
        return rk_stream_copy(stream, out.data, x.data, rk_tensor_bytes(x), RK_COPY_D2D);
    return rk_copy_2d(stream, &(struct rk_copy_2d_args){.out = out, .x = x});
}

static struct rk_status *move_within(struct rk_reshard_run *run)
{
    for (int64_t i = 0; i < run->plan->num_moves; i++) {
        const struct rk_reshard_move *move = &run->plan->moves[i];

        if (move->source == move->destination)
            RK_TRY(copy(run->args->stream, rk_reshard_view(run->destination, move->param, &move->box),
                        rk_reshard_view(run->source, move->source_param, &move->box)));
    }
    return NULL;
}

/* --- a round --- */

static int64_t bytes_of(const struct rk_reshard_run *run, const struct rk_reshard_move *move)
{
    return move->box.shape[0] * move->box.shape[1] * (int64_t)rk_dtype_bytes(run->dtype);
}

static bool is_send(const struct round *round, const struct rk_reshard_move *move)
{
    return move->round == round->number && move->source == round->run->link->rank;
}

static bool is_recv(const struct round *round, const struct rk_reshard_move *move)
{
    return move->round == round->number && move->destination == round->run->link->rank;
}

static struct message *send_to(const struct round *round, const struct rk_reshard_move *move)
{
    return &round->sends[rk_reshard_link_index(round->run->link, move->destination)];
}

static struct message *recv_from(const struct round *round, const struct rk_reshard_move *move)
{
    return &round->recvs[rk_reshard_link_index(round->run->link, move->source)];
}

static void place_messages(struct message *messages, int32_t count)
{
    int64_t at = 0;

    for (int32_t i = 0; i < count; i++) {
        messages[i].begin = at;
        at += messages[i].bytes;
        messages[i].bytes = 0; /* recomputed while it is packed */
    }
}

static void lay_out(struct round *round)
{
    int32_t num_ranks = round->run->link->num_ranks;

    for (int32_t i = 0; i < num_ranks; i++)
        round->sends[i] = round->recvs[i] = (struct message){0};
    for (const struct rk_reshard_move *move = round->first; move < round->end; move++) {
        if (is_send(round, move))
            send_to(round, move)->bytes += bytes_of(round->run, move);
        else if (is_recv(round, move))
            recv_from(round, move)->bytes += bytes_of(round->run, move);
    }
    place_messages(round->sends, num_ranks);
    place_messages(round->recvs, num_ranks);
}

/* The next piece of a message, as a matrix. */
static rk_tensor_t append(struct round *round, rk_tensor_t bucket, struct message *message,
                          const struct rk_reshard_move *move)
{
    char *data = (char *)bucket.data + message->begin + message->bytes;

    message->bytes += bytes_of(round->run, move);
    RK_ASSERT(message->begin + message->bytes <= bucket.shape[0]);
    return rk_tensor_2d(data, round->run->dtype, move->box.shape[0], move->box.shape[1]);
}

static struct rk_status *pack(struct round *round)
{
    struct rk_reshard_run *run = round->run;

    for (const struct rk_reshard_move *move = round->first; move < round->end; move++) {
        if (is_send(round, move))
            RK_TRY(copy(run->args->stream, append(round, run->buffers.send, send_to(round, move), move),
                        rk_reshard_view(run->source, move->source_param, &move->box)));
        else if (is_recv(round, move))
            recv_from(round, move)->bytes += bytes_of(run, move);
    }
    return NULL;
}

static rk_tensor_t message_tensor(rk_tensor_t bucket, const struct message *message)
{
    return rk_tensor_1d((char *)bucket.data + message->begin, RK_DTYPE_U8, message->bytes);
}

static struct rk_status *exchange(const struct round *round)
{
    struct rk_reshard_run *run = round->run;
    struct rk_status *st = NULL;

    RK_TRY(rk_comm_batch_begin(run->group));
    for (int32_t peer = 0; peer < run->link->num_ranks && !st; peer++) {
        if (round->sends[peer].bytes > 0)
            st = rk_comm_send(run->group, run->args->stream,
                              message_tensor(run->buffers.send, &round->sends[peer]), peer);
        if (!st && round->recvs[peer].bytes > 0)
            st = rk_comm_recv(run->group, run->args->stream,
                              message_tensor(run->buffers.recv, &round->recvs[peer]), peer);
    }
    return rk_status_first(st, rk_comm_batch_end(run->group));
}

static struct rk_status *unpack(struct round *round)
{
    struct rk_reshard_run *run = round->run;

    for (int32_t i = 0; i < run->link->num_ranks; i++)
        round->recvs[i].bytes = 0;
    for (const struct rk_reshard_move *move = round->first; move < round->end; move++) {
        rk_tensor_t piece;

        if (!is_recv(round, move))
            continue;
        piece = append(round, run->buffers.recv, recv_from(round, move), move);
        if (!RK_FAULT("reshard.unpack"))
            RK_TRY(
                copy(run->args->stream, rk_reshard_view(run->destination, move->param, &move->box), piece));
    }
    return NULL;
}

static struct rk_status *run_round(struct round *round)
{
    if (RK_FAULT("reshard.round"))
        return RK_FAIL(RK_INTERNAL, "fault point reshard.round");
    lay_out(round);
    RK_TRY(pack(round));
    RK_TRY(exchange(round));
    return unpack(round);
}

/* The tensor of a move that this rank takes part in. */
static const char *name_of(const struct rk_reshard_run *run, const struct rk_reshard_move *move)
{
    return run->destination ? rk_params_at(&run->destination->params, move->param)->name
                            : rk_params_at(&run->source->params, move->source_param)->name;
}

/* Prefixes a failure with the tensors that the round moves here. */
static struct rk_status *name_round(const struct round *round, struct rk_status *st)
{
    const struct rk_reshard_run *run = round->run;
    const struct rk_reshard_move *last = NULL, *first = NULL;

    for (const struct rk_reshard_move *move = round->first; move < round->end; move++) {
        if (!is_send(round, move) && !is_recv(round, move))
            continue;
        first = first ? first : move;
        last = move;
    }
    if (!first)
        return RK_WRAP(st, "bucket %d of %d", round->number, run->plan->num_rounds);
    return RK_WRAP(st, "bucket %d of %d ('%s' to '%s')", round->number, run->plan->num_rounds,
                   name_of(run, first), name_of(run, last));
}

static void report(const struct rk_reshard_run *run, int32_t num_done)
{
    const struct rk_engine_hooks *hooks = run->args->hooks;

    if (hooks && hooks->on_progress)
        hooks->on_progress(hooks->user, "update_weights", (uint64_t)num_done,
                           (uint64_t)run->plan->num_rounds);
}

static struct rk_status *run_rounds(struct rk_reshard_run *run, struct round *round)
{
    const struct rk_reshard_move *end = run->plan->moves + run->plan->num_moves;

    round->end = run->plan->moves;
    for (round->number = 0; round->number < run->plan->num_rounds; round->number++) {
        struct rk_status *st;

        round->first = round->end;
        while (round->end < end && round->end->round <= round->number)
            round->end++;
        st = run_round(round);
        if (st)
            return name_round(round, st);
        report(run, round->number + 1);
    }
    return NULL;
}

struct rk_status *rk_reshard_transfer(struct rk_reshard_run *run)
{
    struct round round = {.run = run};
    struct rk_status *st;

    RK_TRY(move_within(run));
    round.sends = rk_calloc((size_t)run->link->num_ranks, sizeof(*round.sends));
    round.recvs = rk_calloc((size_t)run->link->num_ranks, sizeof(*round.recvs));
    st = run_rounds(run, &round);
    rk_free(round.sends);
    rk_free(round.recvs);
    return st;
}
