/* The micro-batch plan: mini- and micro-batches of all replicas with their global denominators. Rows are
 * named by their place in a replica's chunk. */
#include "dispatch/rk_plan.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_rng.h"
#include "dispatch/plan_internal.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEQLEN INT32_MAX /* of a group; its workload then fits into 64 bits */

struct builder {
    const struct rk_plan_request *request;
    struct rk_arena *arena;
    int64_t chunk_rows;  /* of a replica */
    int64_t mini_rows;   /* of a replica in one mini-batch */
    int64_t num_mini;    /* of one epoch */
    int32_t group_size;  /* rows that stay together */
    int64_t num_groups;  /* of a replica in one mini-batch */
    int32_t *part_of;    /* [num_replicas * num_groups] dynamic: micro-batch of each group */
    int64_t *values;     /* [num_groups] */
    int64_t num_entries; /* mini- and micro-batches so far, against the limit of the wire */
};

static struct rk_status *check_groups(const struct rk_plan_rows *rows)
{
    if (rows->group_size < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "group_size=%d, expected 1 or more", rows->group_size);
    if (rows->mini_rows / rows->num_replicas % rows->group_size)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "group_size=%d does not divide the %" PRId64 " rows of a mini-batch on one of %d "
                       "replicas",
                       rows->group_size, rows->mini_rows / rows->num_replicas, rows->num_replicas);
    return NULL;
}

struct rk_status *rk_plan_check_rows(const struct rk_plan_rows *rows)
{
    if (rows->num_rows < 1 || rows->num_replicas < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "a plan of %" PRId64 " rows for %d replicas", rows->num_rows,
                       rows->num_replicas);
    if (rows->mini_rows < 1 || rows->num_rows % rows->mini_rows)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "mini_batch_rows=%" PRId64 " does not divide the %" PRId64 " rows", rows->mini_rows,
                       rows->num_rows);
    if (rows->mini_rows % rows->num_replicas)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%d replicas do not divide mini_batch_rows=%" PRId64,
                       rows->num_replicas, rows->mini_rows);
    RK_TRY(check_groups(rows));
    for (int64_t i = 0; i < rows->num_rows; i++) {
        if (rows->seqlens[i] < 0 || rows->seqlens[i] > MAX_SEQLEN / rows->group_size)
            return RK_FAIL(RK_INVALID_ARGUMENT, "row %" PRId64 " has %" PRId64 " tokens", i,
                           rows->seqlens[i]);
    }
    return NULL;
}

int64_t rk_plan_group_workload(struct rk_workload workload, const int64_t *seqlens, int32_t group_size)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < group_size; i++)
        sum += rk_workload_of(workload, seqlens[i]);
    return sum;
}

static int64_t group_tokens(const int64_t *seqlens, int32_t group_size)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < group_size; i++)
        sum += seqlens[i];
    return sum;
}

static struct rk_status *check_budget(const struct rk_plan_request *request, int32_t group_size)
{
    for (int64_t i = 0; i < request->num_rows; i += group_size) {
        int64_t tokens = group_tokens(request->seqlens + i, group_size);

        if (tokens <= request->max_token_len)
            continue;
        if (group_size == 1)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "row %" PRId64 " has %" PRId64 " tokens, max_token_len is %" PRId64, i, tokens,
                           request->max_token_len);
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "rows %" PRId64 " to %" PRId64 ", a group, have %" PRId64
                       " tokens, max_token_len is %" PRId64,
                       i, i + group_size - 1, tokens, request->max_token_len);
    }
    return NULL;
}

static struct rk_status *check_request(const struct rk_plan_request *request, const struct rk_plan_rows *rows)
{
    RK_TRY(rk_plan_check_rows(rows));
    if (request->epochs < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "epochs=%d is negative", request->epochs);
    if (request->micro_multiple < 0 || request->micro_multiple > RK_LIMIT_MICRO_BATCHES)
        return RK_FAIL(RK_INVALID_ARGUMENT, "micro_multiple=%d, expected 0 to %d", request->micro_multiple,
                       RK_LIMIT_MICRO_BATCHES);
    if (request->use_dynamic_bsz)
        return check_budget(request, rows->group_size);
    if (request->micro_batch_rows < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "micro_batch_rows=%" PRId64 ", expected 1 or more",
                       request->micro_batch_rows);
    if (request->micro_batch_rows % rows->group_size)
        return RK_FAIL(RK_INVALID_ARGUMENT, "group_size=%d does not divide micro_batch_rows=%" PRId64,
                       rows->group_size, request->micro_batch_rows);
    return NULL;
}

/* Tokens of the rows of replica d in mini-batch m. */
static const int64_t *seqlens_of(const struct builder *builder, int64_t m, int32_t d)
{
    return builder->request->seqlens + d * builder->chunk_rows + m * builder->mini_rows;
}

static struct rk_status *arena_array(void *out, const struct builder *builder, int64_t count, size_t bytes)
{
    void *memory = rk_arena_calloc(builder->arena, (size_t)count, bytes);

    if (!memory)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for a plan of %" PRId64 " entries", count);
    memcpy(out, &memory, sizeof(memory));
    return NULL;
}

/* --- dynamic micro-batches --- */

/* The fewest micro-batches that could hold the tokens of every replica. */
static int64_t least_micro(const struct builder *builder, int64_t m)
{
    int64_t least = 1;

    for (int32_t d = 0; d < builder->request->num_replicas; d++) {
        const int64_t *seqlens = seqlens_of(builder, m, d);
        int64_t limit = builder->request->max_token_len, sum = 0, count;

        for (int64_t i = 0; i < builder->mini_rows; i++)
            sum += seqlens[i];
        count = limit ? sum / limit + (sum % limit != 0) : 1;
        least = RK_MAX(least, RK_MIN(count, builder->num_groups));
    }
    return least;
}

/* The smallest multiple of micro_multiple that is at least `count`. */
static int64_t round_up(const struct builder *builder, int64_t count)
{
    int64_t multiple = RK_MAX(builder->request->micro_multiple, 1);

    return (count + multiple - 1) / multiple * multiple;
}

/* Partitions the groups of every replica into n parts; parts beyond the number of groups are empty. *fits
 * tells whether all parts keep to the token limit. */
static struct rk_status *partition(struct builder *builder, int64_t m, int64_t n, bool *fits)
{
    int64_t *tokens = rk_calloc((size_t)n, sizeof(*tokens));
    int32_t size = builder->group_size;
    struct rk_status *st = NULL;

    *fits = true;
    for (int32_t d = 0; d < builder->request->num_replicas; d++) {
        const int64_t *seqlens = seqlens_of(builder, m, d);
        int32_t *part_of = builder->part_of + d * builder->num_groups;

        for (int64_t i = 0; i < builder->num_groups; i++)
            builder->values[i] = rk_plan_group_workload(builder->request->workload, seqlens + i * size, size);
        RK_TRY_GOTO(st,
                    rk_balance_partitions(part_of, builder->values, builder->num_groups,
                                          (int32_t)RK_MIN(n, builder->num_groups), false),
                    out);
        memset(tokens, 0, (size_t)n * sizeof(*tokens));
        for (int64_t i = 0; i < builder->num_groups; i++) {
            tokens[part_of[i]] += group_tokens(seqlens + i * size, size);
            *fits = *fits && tokens[part_of[i]] <= builder->request->max_token_len;
        }
    }
out:
    rk_free(tokens);
    return st;
}

struct part {
    int64_t workload;
    int64_t first; /* smallest group; for an empty part a number above those of all groups */
    int64_t count; /* of groups */
    int32_t id;
};

static int compare_parts_descending(const void *a, const void *b)
{
    const struct part *x = a, *y = b;

    if (x->workload != y->workload)
        return x->workload > y->workload ? -1 : 1;
    return x->first > y->first ? -1 : x->first < y->first;
}

/* Parts in the order of the micro-batches: heavy ones in the middle. */
static void order_parts(struct part *ordered, struct part *parts, int64_t n)
{
    int64_t next = 0;

    qsort(parts, (size_t)n, sizeof(*parts), compare_parts_descending);
    for (int64_t i = (n - 1) - (n - 1) % 2; i >= 0; i -= 2)
        ordered[next++] = parts[i];
    for (int64_t i = 1; i < n; i += 2)
        ordered[next++] = parts[i];
    RK_ASSERT(next == n);
}

static struct rk_status *emit_part(struct rk_micro_batch *micro, const struct builder *builder, int64_t m,
                                   int32_t d, const struct part *part)
{
    const int64_t *seqlens = seqlens_of(builder, m, d);
    const int32_t *part_of = builder->part_of + d * builder->num_groups;
    uint32_t *rows;

    if (part->count == 0)
        return NULL;
    RK_TRY(arena_array(&rows, builder, part->count * builder->group_size, sizeof(*rows)));
    micro->rows = rows;
    for (int64_t i = 0; i < builder->mini_rows; i++) {
        if (part_of[i / builder->group_size] != part->id)
            continue;
        rows[micro->num_rows++] = (uint32_t)(m * builder->mini_rows + i);
        micro->num_tokens += (uint64_t)seqlens[i];
    }
    return NULL;
}

static struct rk_status *emit_dynamic(struct rk_micro_batch *micro, const struct builder *builder, int64_t m,
                                      int32_t d, int64_t n)
{
    const int64_t *seqlens = seqlens_of(builder, m, d);
    const int32_t *part_of = builder->part_of + d * builder->num_groups;
    int32_t size = builder->group_size;
    struct part *parts = rk_calloc((size_t)n, sizeof(*parts));
    struct part *ordered = rk_calloc((size_t)n, sizeof(*ordered));
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < n; i++)
        parts[i] = (struct part){.id = (int32_t)i, .first = builder->num_groups + i};
    for (int64_t i = 0; i < builder->num_groups; i++) {
        struct part *part = &parts[part_of[i]];

        if (part->count++ == 0)
            part->first = i;
        part->workload += rk_plan_group_workload(builder->request->workload, seqlens + i * size, size);
    }
    order_parts(ordered, parts, n);
    for (int64_t i = 0; i < n; i++)
        RK_TRY_GOTO(st, emit_part(&micro[i], builder, m, d, &ordered[i]), out);
out:
    rk_free(parts);
    rk_free(ordered);
    return st;
}

/* --- fixed micro-batches --- */

static struct rk_status *emit_fixed(struct rk_micro_batch *micro, const struct builder *builder, int64_t m,
                                    int32_t d)
{
    const int64_t *seqlens = seqlens_of(builder, m, d);
    int64_t size = builder->request->micro_batch_rows;

    for (int64_t begin = 0; begin < builder->mini_rows; begin += size, micro++) {
        uint32_t *rows;

        micro->num_rows = RK_MIN(size, builder->mini_rows - begin);
        RK_TRY(arena_array(&rows, builder, micro->num_rows, sizeof(*rows)));
        micro->rows = rows;
        for (int64_t i = 0; i < micro->num_rows; i++) {
            rows[i] = (uint32_t)(m * builder->mini_rows + begin + i);
            micro->num_tokens += (uint64_t)seqlens[begin + i];
        }
    }
    return NULL;
}

/* --- mini-batches --- */

static struct rk_status *count_micro(struct builder *builder, int64_t m, int64_t *n)
{
    int64_t size = builder->request->micro_batch_rows;
    bool fits = true;

    if (!builder->request->use_dynamic_bsz) {
        *n = round_up(builder, builder->mini_rows / size + (builder->mini_rows % size != 0));
        return NULL;
    }
    /* Balancing by workload may leave a part over the limit. One group a part always fits. */
    *n = round_up(builder, least_micro(builder, m));
    RK_TRY(partition(builder, m, *n, &fits));
    while (!fits) {
        *n = round_up(builder, *n + 1);
        RK_TRY(partition(builder, m, *n, &fits));
    }
    RK_ASSERT(*n <= round_up(builder, builder->num_groups));
    return NULL;
}

static void fill_denominators(struct rk_mini_batch *mini, const struct builder *builder, int64_t m)
{
    const struct rk_plan_request *request = builder->request;
    const int64_t *tokens = request->loss_tokens ? request->loss_tokens : request->seqlens;
    int64_t sum = 0;

    for (int32_t d = 0; d < request->num_replicas; d++) {
        for (int64_t i = 0; i < builder->mini_rows; i++)
            sum += tokens[d * builder->chunk_rows + m * builder->mini_rows + i];
    }
    /* A mini-batch without counted tokens has the loss 0, not 0 / 0. Rows without one are sequences too, as
     * in verl: a batch of which few rows are left takes no larger step. */
    mini->num_tokens = (uint64_t)RK_MAX(sum, 1);
    mini->num_sequences = (uint64_t)(builder->mini_rows * request->num_replicas);
}

static struct rk_status *build_mini(struct rk_mini_batch *mini, struct builder *builder, int64_t m)
{
    int64_t n;

    RK_TRY(count_micro(builder, m, &n));
    mini->num_micro = (int32_t)n;
    mini->num_entries = n * builder->request->num_replicas;
    RK_TRY(arena_array(&mini->micro, builder, mini->num_entries, sizeof(*mini->micro)));
    for (int32_t d = 0; d < builder->request->num_replicas; d++) {
        if (builder->request->use_dynamic_bsz)
            RK_TRY(emit_dynamic(&mini->micro[d * n], builder, m, d, n));
        else
            RK_TRY(emit_fixed(&mini->micro[d * n], builder, m, d));
    }
    fill_denominators(mini, builder, m);
    return NULL;
}

static struct rk_status *build_epochs(struct rk_plan *plan, struct builder *builder, int32_t epochs)
{
    int64_t *order = rk_calloc((size_t)builder->num_mini, sizeof(*order));
    struct rk_status *st = NULL;

    plan->num_mini = builder->num_mini * epochs;
    RK_TRY_GOTO(st, arena_array(&plan->mini, builder, plan->num_mini, sizeof(*plan->mini)), out);
    for (int64_t m = 0; m < builder->num_mini; m++) {
        RK_TRY_GOTO(st, build_mini(&plan->mini[m], builder, m), out);
        builder->num_entries += (1 + plan->mini[m].num_entries) * epochs;
        if (builder->num_entries > RK_LIMIT_MICRO_BATCHES)
            RK_TRY_GOTO(st,
                        RK_FAIL(RK_RESOURCE_EXHAUSTED, "a plan of more than %d mini- and micro-batches",
                                RK_LIMIT_MICRO_BATCHES),
                        out);
    }
    /* Later epochs share the first one's arrays. */
    for (int32_t epoch = 1; epoch < epochs; epoch++) {
        for (int64_t m = 0; m < builder->num_mini; m++)
            order[m] = m;
        if (builder->request->shuffle)
            rk_rng_permutation(builder->request->seed, rk_rng_stream_of_name("plan.epoch") + (uint64_t)epoch,
                               builder->num_mini, order);
        for (int64_t m = 0; m < builder->num_mini; m++)
            plan->mini[epoch * builder->num_mini + m] = plan->mini[order[m]];
    }
out:
    rk_free(order);
    return st;
}

struct rk_status *rk_plan_build(struct rk_plan *out, struct rk_arena *arena,
                                const struct rk_plan_request *request)
{
    int64_t mini_rows = request->mini_batch_rows ? request->mini_batch_rows : request->num_rows;
    int32_t group_size = request->group_size ? request->group_size : 1;
    struct builder builder = {.request = request, .arena = arena, .group_size = group_size};
    struct rk_plan_rows rows = {request->seqlens, request->num_rows, mini_rows, request->num_replicas,
                                group_size};
    struct rk_status *st = NULL;
    struct rk_plan plan = {0};

    *out = (struct rk_plan){0};
    RK_TRY(check_request(request, &rows));
    builder.chunk_rows = request->num_rows / request->num_replicas;
    builder.mini_rows = mini_rows / request->num_replicas;
    builder.num_mini = request->num_rows / mini_rows;
    builder.num_groups = builder.mini_rows / group_size;
    builder.part_of =
        rk_calloc((size_t)(builder.num_groups * request->num_replicas), sizeof(*builder.part_of));
    builder.values = rk_calloc((size_t)builder.num_groups, sizeof(*builder.values));
    RK_TRY_GOTO(st, build_epochs(&plan, &builder, request->epochs ? request->epochs : 1), out);
    *out = plan;
out:
    rk_free(builder.part_of);
    rk_free(builder.values);
    return st;
}
