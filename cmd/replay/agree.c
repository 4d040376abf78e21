/* Whether the recordings of the ranks agree, before anything runs: a call that is missing or different on one
 * rank would leave the others waiting in their collectives. */
#include "cmd/replay/replay.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_map.h"
#include "proto/rk_methods.h"

rk_code_t rk_replay_code_of(const struct rk_recording_item *result)
{
    return (rk_code_t)rk_json_as_int(rk_json_find(result->meta, "code"), RK_OK);
}

bool rk_replay_is_from_outside(rk_code_t code)
{
    return code == RK_CANCELLED || code == RK_ABORTED || code == RK_DEADLINE_EXCEEDED ||
           code == RK_UNAVAILABLE;
}

/* --- entries --- */

static struct rk_status *damaged(const struct rk_recording *recording, const struct rk_recording_item *item,
                                 const char *what)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DAMAGED", "'%s': entry %" PRId64 ": %s",
                          rk_recording_dir(recording), item->number, what);
}

static struct rk_status *check_code(const struct rk_recording *recording,
                                    const struct rk_recording_item *item)
{
    const struct rk_json *code = rk_json_find(item->meta, "code");
    int64_t value = rk_json_as_int(code, -1);
    char *text, *what;
    struct rk_status *st;

    if (value >= RK_OK && value < RK_CODE_COUNT)
        return NULL;
    text = code ? rk_json_dump(code, 0, false) : rk_strdup("nothing");
    what = rk_format("code: expected a number from 0 to %d, got %.64s", RK_CODE_COUNT - 1, text);
    st = damaged(recording, item, what);
    rk_free(what);
    rk_free(text);
    return st;
}

struct rk_status *rk_replay_check_entries(const struct rk_recording *recording)
{
    struct rk_map *calls = rk_map_create();
    struct rk_status *st = NULL;

    for (int64_t i = 0; !st && i < rk_recording_num_items(recording); i++) {
        const struct rk_recording_item *item = rk_recording_item_at(recording, i);
        const char *id = rk_json_as_string(rk_json_find(item->meta, "request_id"), "");

        if (item->kind == RK_RECORDING_RESULT)
            st = check_code(recording, item);
        if (item->kind != RK_RECORDING_CALL)
            continue;
        if (rk_map_find(calls, id))
            st = damaged(recording, item, "the call is recorded twice");
        rk_map_put(calls, id, (void *)(uintptr_t)item);
    }
    rk_map_destroy(calls);
    return st;
}

/* --- steps --- */

/* Check of one step, and of the meshes that it runs over. */
struct check {
    const struct rk_replay_order *order;
    const struct rk_replay_step *step;
    const struct rk_configure_request *meshes; /* of the last Configure; NULL before it */
    struct rk_arena *arena;
    int64_t number; /* of the call, from 1, as the replay counts */
};

static struct rk_status *disagree(const struct check *check, const struct rk_execute_header *header,
                                  int32_t rank, const char *what)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DISAGREES", "call %" PRId64 " %s.%s: rank %d ('%s') %s",
                          check->number, header->role, header->method, rank,
                          rk_recording_dir(check->order->recordings[rank]), what);
}

/* Whether an event ended the call, so that it may have reached some ranks only. */
static bool was_interrupted(const struct check *check)
{
    for (int32_t rank = 0; rank < check->order->num_ranks; rank++) {
        const struct rk_recording_item *result = check->step->results[rank];

        if (check->step->items[rank] && (!result || rk_replay_is_from_outside(rk_replay_code_of(result))))
            return true;
    }
    return false;
}

/* The first rank of a mesh of the call that has not recorded it; -1: none. */
static int32_t find_missing(const struct check *check, const struct rk_role_mesh *mesh)
{
    const struct rk_mesh_spec *spec = &mesh->mesh;
    int32_t count = spec->num_ranks > 0 ? spec->num_ranks : check->order->num_ranks;

    for (int32_t i = 0; i < count; i++) {
        int32_t rank = spec->num_ranks > 0 ? spec->ranks[i] : i;

        if (rank >= 0 && rank < check->order->num_ranks && !check->step->items[rank])
            return rank;
    }
    return -1;
}

static struct rk_status *check_members(const struct check *check, const struct rk_execute_header *header)
{
    const struct rk_method *method = rk_method_find(header->method);
    struct rk_method_meshes roles;

    if (!method || !rk_role_parse(header->role) || !check->meshes || header->brief || was_interrupted(check))
        return NULL;
    roles = rk_method_get_meshes(method, header->role);
    for (int64_t m = 0; m < check->meshes->num_meshes; m++) {
        for (int32_t i = 0; i < roles.count; i++) {
            int32_t rank = strcmp(check->meshes->meshes[m].role, roles.role[i]) == 0
                               ? find_missing(check, &check->meshes->meshes[m])
                               : -1;

            if (rank >= 0)
                return disagree(check, header, rank, "has not recorded it, although the others ended it");
        }
    }
    return NULL;
}

static bool has_equal_options(const struct rk_execute_header *a, const struct rk_execute_header *b)
{
    struct rk_json *left = rk_meta_to_json(&a->options), *right = rk_meta_to_json(&b->options);
    bool is_equal = rk_json_equal(left, right);

    rk_json_free(left);
    rk_json_free(right);
    return is_equal;
}

static struct rk_status *check_call(struct check *check)
{
    struct rk_execute_request first = {0}, other;
    bool has_first = false;

    for (int32_t rank = 0; rank < check->order->num_ranks; rank++) {
        const struct rk_recording_item *item = check->step->items[rank];

        if (!item)
            continue;
        RK_TRY(rk_unpack_execute_request(&other, check->arena, item->message, item->message_bytes));
        if (other.kind != RK_EXECUTE_HEADER)
            return damaged(check->order->recordings[rank], item, "the call has no header");
        if (!has_first)
            first = other;
        has_first = true;
        if (strcmp(first.header.role, other.header.role) != 0 ||
            strcmp(first.header.method, other.header.method) != 0)
            return disagree(check, &first.header, rank, "has a different method under the same request_id");
        if (!has_equal_options(&first.header, &other.header))
            return disagree(check, &first.header, rank, "has different options for the same call");
    }
    return check_members(check, &first.header);
}

static struct rk_status *check_step(struct check *check, struct rk_configure_request *configured,
                                    struct rk_arena *of_meshes)
{
    const struct rk_recording_item *item = check->step->items[0];

    if (check->step->kind == RK_RECORDING_CALL) {
        check->number++;
        return check_call(check);
    }
    rk_arena_reset(of_meshes);
    check->meshes = configured;
    return rk_unpack_configure_request(configured, of_meshes, item->message, item->message_bytes);
}

struct rk_status *rk_replay_check_steps(const struct rk_replay_order *order)
{
    struct rk_arena *of_meshes = rk_arena_create(4096, 0);
    struct check check = {.order = order, .arena = rk_arena_create(16384, 0)};
    struct rk_configure_request configured;
    struct rk_status *st = NULL;

    for (int64_t i = 0; !st && i < order->steps.count; i++) {
        check.step = &order->steps.items[i];
        st = check_step(&check, &configured, of_meshes);
        rk_arena_reset(check.arena);
    }
    rk_arena_destroy(check.arena);
    rk_arena_destroy(of_meshes);
    return st;
}
