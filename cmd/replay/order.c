#include "cmd/replay/replay.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* The position in each rank's recording while the steps are determined. */
struct merge {
    struct rk_replay_order *order;
    int64_t *next; /* [num_ranks]: item */
};

static const char *request_id_of(const struct rk_recording_item *item)
{
    return rk_json_as_string(rk_json_find(item->meta, "request_id"), "");
}

/* --- ranks --- */

static struct rk_status *incomplete(const struct rk_recording *recording, const char *what)
{
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "RECORD_INCOMPLETE", "'%s': %s", rk_recording_dir(recording),
                          what);
}

/* Rank and world of the recording, which are the same in all its Configures. */
static struct rk_status *find_rank(const struct rk_recording *recording, uint32_t *rank, uint32_t *world_size)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_status *st = NULL;

    *world_size = 0;
    for (int64_t i = 0; i < rk_recording_num_items(recording) && !st; i++) {
        const struct rk_recording_item *item = rk_recording_item_at(recording, i);
        struct rk_configure_request request;

        if (item->kind != RK_RECORDING_CONFIGURE)
            continue;
        st = rk_unpack_configure_request(&request, arena, item->message, item->message_bytes);
        if (st)
            break;
        if (*world_size > 0 && (request.rank != *rank || request.world_size != *world_size))
            st = incomplete(
                recording,
                "the daemon was configured as another rank later; expected one rank per recording");
        *rank = request.rank;
        *world_size = request.world_size;
    }
    if (!st && *world_size == 0)
        st = incomplete(recording, "expected a Configure entry, got none");
    rk_arena_destroy(arena);
    return st;
}

static struct rk_status *missing_ranks(const struct rk_replay_order *order)
{
    struct rk_str text = {0};
    struct rk_status *st = NULL;
    int count = 0;

    for (int32_t i = 0; i < order->num_ranks; i++) {
        if (!order->recordings[i])
            rk_str_appendf(&text, "%s%d", count++ ? ", " : "", i);
    }
    if (count > 0)
        st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "RECORD_INCOMPLETE",
                            "the run had %d ranks; the folders of ranks %s are missing", order->num_ranks,
                            rk_str_text(&text));
    rk_str_fini(&text);
    return st;
}

static struct rk_status *place_recordings(struct rk_replay_order *order, struct rk_recording **recordings,
                                          int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        uint32_t rank = 0, world_size = 0;

        RK_TRY(find_rank(recordings[i], &rank, &world_size));
        if (i == 0) {
            if (world_size > RK_MESH_MAX_RANKS)
                return incomplete(recordings[i], "its world is larger than the limit");
            order->num_ranks = (int32_t)world_size;
            order->recordings = rk_calloc(world_size, sizeof(struct rk_recording *));
        }
        if (world_size != (uint32_t)order->num_ranks)
            return incomplete(recordings[i], "the size of its world differs from that of the other folders");
        if (rank >= world_size)
            return incomplete(recordings[i], "its rank is not below the size of its world");
        if (order->recordings[rank])
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "RECORD_INCOMPLETE", "'%s' and '%s' are both rank %u",
                                  rk_recording_dir(order->recordings[rank]), rk_recording_dir(recordings[i]),
                                  rank);
        order->recordings[rank] = recordings[i];
    }
    return missing_ranks(order);
}

/* --- steps --- */

static bool is_step(const struct rk_recording_item *item)
{
    return item->kind == RK_RECORDING_CONFIGURE || item->kind == RK_RECORDING_CALL;
}

/* The next Configure or call of the rank; NULL at its end. */
static const struct rk_recording_item *peek(const struct merge *merge, int32_t rank)
{
    const struct rk_recording *recording = merge->order->recordings[rank];

    while (merge->next[rank] < rk_recording_num_items(recording)) {
        const struct rk_recording_item *item = rk_recording_item_at(recording, merge->next[rank]);

        if (is_step(item))
            return item;
        merge->next[rank]++;
    }
    return NULL;
}

static bool is_same(const struct rk_recording_item *a, const struct rk_recording_item *b)
{
    if (a->kind != b->kind)
        return false;
    return a->kind == RK_RECORDING_CONFIGURE || strcmp(request_id_of(a), request_id_of(b)) == 0;
}

/* Whether the rank takes part in the item, now or later: then its own earlier items come first. */
static bool takes_part_later(const struct merge *merge, int32_t rank, const struct rk_recording_item *item)
{
    const struct rk_recording *recording = merge->order->recordings[rank];

    for (int64_t i = merge->next[rank]; i < rk_recording_num_items(recording); i++) {
        const struct rk_recording_item *other = rk_recording_item_at(recording, i);

        if (is_step(other) && is_same(item, other))
            return true;
    }
    return false;
}

/* Whether the item is next on all ranks that take part in it. Every rank takes part in a Configure. */
static bool is_ready(const struct merge *merge, const struct rk_recording_item *item)
{
    for (int32_t rank = 0; rank < merge->order->num_ranks; rank++) {
        const struct rk_recording_item *next = peek(merge, rank);

        if (next && is_same(item, next))
            continue;
        if (item->kind == RK_RECORDING_CONFIGURE || takes_part_later(merge, rank, item))
            return false;
    }
    return true;
}

static const struct rk_recording_item *find_result(const struct rk_recording *recording,
                                                   const struct rk_recording_item *call)
{
    for (int64_t i = call->number; i < rk_recording_num_items(recording); i++) {
        const struct rk_recording_item *item = rk_recording_item_at(recording, i);

        if (item->kind == RK_RECORDING_RESULT && strcmp(request_id_of(item), request_id_of(call)) == 0)
            return item;
    }
    return NULL;
}

static void add_step(struct merge *merge, const struct rk_recording_item *item)
{
    struct rk_replay_order *order = merge->order;
    struct rk_replay_step step = {.kind = item->kind};

    step.items = rk_calloc((size_t)order->num_ranks, sizeof(*step.items));
    step.results = rk_calloc((size_t)order->num_ranks, sizeof(*step.results));
    for (int32_t rank = 0; rank < order->num_ranks; rank++) {
        const struct rk_recording_item *next = peek(merge, rank);

        if (!next || !is_same(item, next))
            continue;
        step.items[rank] = next;
        if (next->kind == RK_RECORDING_CALL)
            step.results[rank] = find_result(order->recordings[rank], next);
        merge->next[rank]++;
    }
    rk_array_append(&order->steps, step);
}

/* A recording that ended before its daemon stopped lacks calls in which the rank took part: without
 * it the others would wait in their collectives. */
static bool has_broken_off(const struct merge *merge)
{
    for (int32_t rank = 0; rank < merge->order->num_ranks; rank++) {
        const char *reason = rk_recording_end_reason(merge->order->recordings[rank]);

        if (!peek(merge, rank) && (!reason || strcmp(reason, RK_RECORDING_WHOLE) != 0))
            return true;
    }
    return false;
}

/* False at the end of all recordings, and when none of them can continue. */
static bool take_step(struct merge *merge)
{
    if (has_broken_off(merge))
        return false;
    for (int32_t rank = 0; rank < merge->order->num_ranks; rank++) {
        const struct rk_recording_item *next = peek(merge, rank);

        if (next && is_ready(merge, next)) {
            add_step(merge, next);
            return true;
        }
    }
    return false;
}

/* "rank 0 goes on with a Configure". */
static void append_next(struct rk_str *out, const struct merge *merge, int32_t rank, struct rk_arena *arena)
{
    const struct rk_recording_item *next = peek(merge, rank);
    struct rk_execute_request request;
    struct rk_status *st;

    rk_str_appendf(out, "%srank %d goes on with ", rank > 0 ? ", " : "", rank);
    if (next->kind == RK_RECORDING_CONFIGURE) {
        rk_str_append(out, "a Configure");
        return;
    }
    st = rk_unpack_execute_request(&request, arena, next->message, next->message_bytes);
    if (!st && request.kind == RK_EXECUTE_HEADER)
        rk_str_appendf(out, "%s.%s (entry %" PRId64 ")", request.header.role, request.header.method,
                       next->number);
    else
        rk_str_appendf(out, "entry %" PRId64, next->number);
    rk_status_free(st);
}

static struct rk_status *differing(const struct merge *merge)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_str text = {0};
    struct rk_status *st;

    for (int32_t rank = 0; rank < merge->order->num_ranks; rank++)
        append_next(&text, merge, rank, arena);
    st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "RECORD_INCOMPLETE",
                        "the folders are not of one run: their calls differ after step %" PRId64 ": %s",
                        merge->order->steps.count, rk_str_text(&text));
    rk_str_fini(&text);
    rk_arena_destroy(arena);
    return st;
}

/* A rank that died takes no part in what the others recorded later; a Configure of the others alone is the
 * end of what can be replayed. */
static struct rk_status *check_rest(const struct merge *merge)
{
    bool has_ended = false;

    for (int32_t rank = 0; rank < merge->order->num_ranks; rank++)
        has_ended |= !peek(merge, rank);
    if (has_ended)
        return NULL;
    return differing(merge);
}

struct rk_status *rk_replay_order_make(struct rk_replay_order *out, struct rk_recording **recordings,
                                       int32_t num_recordings)
{
    struct merge merge = {.order = out};
    struct rk_status *st;

    *out = (struct rk_replay_order){0};
    RK_ASSERT(num_recordings > 0);
    for (int32_t i = 0; i < num_recordings; i++)
        RK_TRY(rk_replay_check_entries(recordings[i]));
    st = place_recordings(out, recordings, num_recordings);
    if (!st) {
        merge.next = rk_calloc((size_t)out->num_ranks, sizeof(*merge.next));
        while (take_step(&merge))
            ;
        st = check_rest(&merge);
        if (!st)
            st = rk_replay_check_steps(out);
    }
    rk_free(merge.next);
    if (st)
        rk_replay_order_fini(out);
    return st;
}

void rk_replay_order_fini(struct rk_replay_order *order)
{
    for (int64_t i = 0; i < order->steps.count; i++) {
        rk_free(order->steps.items[i].items);
        rk_free(order->steps.items[i].results);
    }
    rk_array_fini(&order->steps);
    rk_free(order->recordings);
    *order = (struct rk_replay_order){0};
}
