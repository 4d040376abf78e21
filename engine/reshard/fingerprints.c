/* Verifies that the destination has the values of the source: compares, per tensor, the sum of all elements'
 * fingerprints over the counted ranks of the source with the sum over all ranks of the destination. Each copy
 * of the destination has the source's sum, so all copies together have num_copies times it. */
#include "engine/reshard/reshard.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

/* A fingerprint is exchanged as two F64 with 32 bits each: sums over fewer than 2^20 ranks are exact. */
#define HALVES 2

/* --- this rank's --- */

static struct rk_status *add_one(const struct rk_reshard_run *run, const struct rk_model_core *core,
                                 int64_t row, int64_t slot)
{
    const struct rk_param *param = rk_params_at(&core->params, row);
    struct rk_param_box box = rk_param_get_box(param, rk_params_placement(&core->params, row));
    int64_t *out = (int64_t *)run->buffers.fingerprints.data + slot;

    if (box.shape[0] * box.shape[1] == 0)
        return NULL;
    return rk_fingerprint(run->args->stream,
                          &(struct rk_fingerprint_args){
                              .out = rk_tensor_1d(out, RK_DTYPE_I64, 1),
                              .x = rk_reshard_view(core, row, &box),
                              .dtype = run->dtype,
                              .first = (uint64_t)(box.begin[0] * param->shape[1] + box.begin[1]),
                              .row_pitch = (uint64_t)param->shape[1],
                          });
}

static struct rk_status *compute(const struct rk_reshard_run *run, uint64_t *out)
{
    int64_t num_rows = run->plan->num_parts;
    rk_tensor_t fingerprints = run->buffers.fingerprints;

    RK_TRY(rk_stream_zero(run->args->stream, fingerprints.data, rk_tensor_bytes(fingerprints)));
    for (int64_t row = 0; row < num_rows; row++) {
        const struct rk_reshard_part *part = &run->plan->parts[row];

        if (part->is_counted)
            RK_TRY(add_one(run, run->source, part->source_param, row));
        if (part->copy >= 0)
            RK_TRY(add_one(run, run->destination, row, num_rows + row));
    }
    RK_TRY(rk_stream_copy(run->args->stream, out, fingerprints.data, rk_tensor_bytes(fingerprints),
                          RK_COPY_D2H));
    return rk_stream_sync(run->args->stream);
}

/* --- sums over all ranks --- */

static void split(const uint64_t *values, int64_t count, double *halves)
{
    for (int64_t i = 0; i < count; i++) {
        halves[HALVES * i] = (double)(values[i] & UINT32_MAX);
        halves[HALVES * i + 1] = (double)(values[i] >> 32);
    }
}

static uint64_t join(const double *halves)
{
    return (uint64_t)halves[0] + ((uint64_t)halves[1] << 32);
}

static struct rk_status *sum_over_ranks(const struct rk_reshard_run *run, double *halves)
{
    struct rk_stream *stream = run->args->stream;
    size_t bytes = rk_tensor_bytes(run->buffers.sums);

    RK_TRY(rk_stream_copy(stream, run->buffers.sums.data, halves, bytes, RK_COPY_H2D));
    RK_TRY(rk_comm_all_reduce(run->group, stream, run->buffers.sums, RK_REDUCE_SUM));
    RK_TRY(rk_stream_copy(stream, halves, run->buffers.sums.data, bytes, RK_COPY_D2H));
    return rk_stream_sync(stream);
}

/* --- which ranks hold the tensor that differs --- */

/* Data of one rank about one tensor: its part of the source, if it is counted there; its part of the
 * destination; the number of its copy, from 1 on. */
struct testimony {
    double source[HALVES], destination[HALVES], copy;
};
#define TESTIMONY_VALUES ((int64_t)(sizeof(struct testimony) / sizeof(double)))

static void append_rank(struct rk_str *text, const struct rk_reshard_run *run, int32_t i)
{
    rk_str_appendf(text, "%s%d", *rk_str_text(text) ? ", " : "", run->link->ranks[i]);
}

static struct rk_status *name_ranks(const struct rk_reshard_run *run, int64_t row,
                                    const struct testimony *all)
{
    const char *name = rk_params_at(run->destination ? &run->destination->params : &run->source->params,
                                    run->destination ? row : run->plan->parts[row].source_param)
                           ->name;
    struct rk_str sources = {0}, destinations = {0};
    uint64_t expected = 0;
    struct rk_status *st;

    for (int32_t i = 0; i < run->link->num_ranks; i++) {
        uint64_t part = join(all[i].source);

        expected += part;
        if (part)
            append_rank(&sources, run, i);
    }
    for (int32_t copy = 1; copy <= run->plan->parts[row].num_copies; copy++) {
        uint64_t actual = 0;

        for (int32_t i = 0; i < run->link->num_ranks; i++)
            actual += (int32_t)all[i].copy == copy ? join(all[i].destination) : 0;
        for (int32_t i = 0; i < run->link->num_ranks && actual != expected; i++) {
            if ((int32_t)all[i].copy == copy)
                append_rank(&destinations, run, i);
        }
    }
    st =
        RK_FAIL_REASON(RK_DATA_LOSS, "FINGERPRINT",
                       "tensor '%s' of ranks %s differs from that of ranks %s, whose fingerprint is %016llx; "
                       "the weights of the destination are invalid",
                       name, rk_str_text(&destinations), rk_str_text(&sources), (unsigned long long)expected);
    rk_str_fini(&sources);
    rk_str_fini(&destinations);
    return st;
}

static struct rk_status *examine(const struct rk_reshard_run *run, int64_t row, const uint64_t *mine)
{
    const struct rk_reshard_part *part = &run->plan->parts[row];
    int64_t num_ranks = run->link->num_ranks;
    struct testimony *all = rk_calloc((size_t)num_ranks, sizeof(*all));
    struct testimony *me = &all[rk_reshard_link_index(run->link, run->link->rank)];
    struct rk_status *st;

    split(&mine[row], 1, me->source);
    split(&mine[run->plan->num_parts + row], 1, me->destination);
    me->copy = part->copy + 1;
    st = rk_engine_sum(run->group, run->args->stream, run->args->scratch, (double *)all,
                       num_ranks * TESTIMONY_VALUES);
    if (!st) {
        run->result->is_known_to_peers = true;
        st = name_ranks(run, row, all);
    }
    rk_free(all);
    return st;
}

struct rk_status *rk_reshard_compare(struct rk_reshard_run *run)
{
    int64_t num_rows = run->plan->num_parts, count = 2 * num_rows;
    uint64_t *mine = rk_calloc((size_t)count, sizeof(*mine));
    double *halves = rk_calloc((size_t)(HALVES * count), sizeof(*halves));
    struct rk_status *st;

    RK_TRY_GOTO(st, compute(run, mine), out);
    split(mine, count, halves);
    RK_TRY_GOTO(st, sum_over_ranks(run, halves), out);
    for (int64_t row = 0; row < num_rows && !st; row++) {
        uint64_t source = join(&halves[HALVES * row]);
        uint64_t destination = join(&halves[HALVES * (num_rows + row)]);

        if (destination != source * (uint64_t)run->plan->parts[row].num_copies)
            st = examine(run, row, mine);
    }

out:
    rk_free(mine);
    rk_free(halves);
    return st;
}
