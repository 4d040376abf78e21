/* The sum of the roles' memory plans. A role adds to a rank the difference between the free memory before and
 * after it, which the daemon has computed: less than its plan if it shares the workspace of previous
 * roles, or uses memory that they offload between calls. */
#include "rl/plan/memory_sum_parts_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

const struct rk_memory_sum_kind rk_memory_sum_kinds[RK_MEMORY_SUM_KINDS] = {
    {"parameters", RK_MEMORY_SUM_WEIGHTS},    {"masters", RK_MEMORY_SUM_WEIGHTS},
    {"gradients", RK_MEMORY_SUM_WEIGHTS},     {"optimizer", RK_MEMORY_SUM_WEIGHTS},
    {"activations", RK_MEMORY_SUM_PASSES},    {"kv_cache", RK_MEMORY_SUM_CACHE},
    {"workspace", RK_MEMORY_SUM_PASSES},      {"staging", RK_MEMORY_SUM_PASSES},
    {"communication", RK_MEMORY_SUM_WEIGHTS},
};

void rk_memory_sum_init(struct rk_memory_sum *sum, int32_t num_ranks)
{
    RK_ASSERT(num_ranks > 0);
    *sum = (struct rk_memory_sum){.num_ranks = num_ranks};
}

void rk_memory_sum_fini(struct rk_memory_sum *sum)
{
    for (int64_t i = 0; i < sum->num_roles; i++)
        rk_json_free(sum->roles[i].plans);
    *sum = (struct rk_memory_sum){0};
}

/* --- answers --- */

int64_t rk_memory_sum_bytes_at(const struct rk_json *plan, const char *path)
{
    return rk_json_as_int(rk_json_find_path(plan, path), 0);
}

/* Checks that the answers of a daemon have the values that are added up. */
static struct rk_status *check_plan(const struct rk_json *plan, const char *role)
{
    static const char *const paths[] = {"planned.total", "given_back",      "room.free",
                                        "device.free",   "room_after.free", "communication"};

    for (size_t i = 0; i < RK_ARRAY_LEN(paths); i++) {
        if (rk_json_type(rk_json_find_path(plan, paths[i])) != RK_JSON_INT)
            return RK_FAIL(RK_INTERNAL, "%s.init_model with plan_only: expected bytes in '%s' of its result",
                           role, paths[i]);
    }
    return NULL;
}

struct rk_status *rk_memory_sum_add(struct rk_memory_sum *sum, const struct rk_job_role *role,
                                    const struct rk_json *const *metas, int32_t num_metas)
{
    const struct rk_json **plans = rk_calloc((size_t)sum->num_ranks, sizeof(struct rk_json *));
    struct rk_status *st = NULL;

    RK_ASSERT(sum->num_roles < RK_LIMIT_ROLES);
    for (int32_t i = 0; i < num_metas && !st; i++) {
        int64_t rank = rk_json_as_int(rk_json_find(metas[i], "rank"), -1);

        if (rank < 0) /* outside the role's mesh */
            continue;
        st = rank < sum->num_ranks ? check_plan(metas[i], role->name)
                                   : RK_FAIL(RK_INTERNAL, "%s.init_model: plan of rank %lld of %d",
                                             role->name, (long long)rank, sum->num_ranks);
        if (!st)
            plans[rank] = metas[i];
    }
    if (!st) {
        struct rk_json *list = sum->roles[sum->num_roles].plans = rk_json_new_array();

        sum->roles[sum->num_roles++].role = role;
        for (int32_t rank = 0; rank < sum->num_ranks; rank++)
            rk_json_append(list, plans[rank] ? rk_json_clone(plans[rank]) : rk_json_new_null());
    }
    rk_free(plans);
    return st;
}

const struct rk_json *rk_memory_sum_plan_of(const struct rk_memory_sum *sum, int64_t role, int32_t rank)
{
    return rk_json_at(sum->roles[role].plans, rank);
}

const struct rk_json *rk_memory_sum_last_plan(const struct rk_memory_sum *sum, int32_t rank)
{
    for (int64_t i = sum->num_roles - 1; i >= 0; i--) {
        if (!rk_json_is_null(rk_memory_sum_plan_of(sum, i, rank)))
            return rk_memory_sum_plan_of(sum, i, rank);
    }
    return NULL;
}

struct rk_json *rk_memory_sum_room(const struct rk_memory_sum *sum)
{
    struct rk_json *rooms;

    if (sum->num_roles == 0)
        return rk_json_new_null();
    rooms = rk_json_new_array();
    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        const struct rk_json *room = rk_json_find(rk_memory_sum_last_plan(sum, rank), "room_after");

        rk_json_append(rooms, room ? rk_json_clone(room) : rk_json_new_null());
    }
    return rooms;
}

/* --- sums --- */

int64_t rk_memory_sum_kind_bytes(const struct rk_json *plan, int kind)
{
    const struct rk_json *value = rk_json_find(rk_json_find(plan, "planned"), rk_memory_sum_kinds[kind].name);

    return value ? rk_json_as_int(value, 0) : rk_memory_sum_bytes_at(plan, rk_memory_sum_kinds[kind].name);
}

int64_t rk_memory_sum_added_bytes(const struct rk_json *plan)
{
    return rk_memory_sum_bytes_at(plan, "room.free") - rk_memory_sum_bytes_at(plan, "room_after.free");
}

int64_t rk_memory_sum_taken_bytes(const struct rk_memory_sum *sum, int32_t rank)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < sum->num_roles; i++)
        bytes += rk_memory_sum_added_bytes(rk_memory_sum_plan_of(sum, i, rank));
    return bytes;
}

int64_t rk_memory_sum_free_bytes(const struct rk_memory_sum *sum, int32_t rank)
{
    return rk_memory_sum_bytes_at(rk_memory_sum_last_plan(sum, rank), "room_after.free") +
           rk_memory_sum_taken_bytes(sum, rank);
}

int64_t rk_memory_sum_left_bytes(const struct rk_memory_sum *sum, int32_t rank)
{
    return rk_memory_sum_free_bytes(sum, rank) - rk_memory_sum_taken_bytes(sum, rank);
}

int32_t rk_memory_sum_fullest(const struct rk_memory_sum *sum)
{
    int32_t fullest = -1;

    for (int32_t rank = 0; rank < sum->num_ranks; rank++) {
        if (rk_memory_sum_last_plan(sum, rank) &&
            (fullest < 0 || rk_memory_sum_left_bytes(sum, rank) < rk_memory_sum_left_bytes(sum, fullest)))
            fullest = rank;
    }
    return RK_MAX(fullest, 0);
}

int rk_memory_sum_largest_kind(const struct rk_json *plan)
{
    int largest = 0;

    for (int kind = 1; kind < RK_MEMORY_SUM_KINDS; kind++) {
        if (rk_memory_sum_kind_bytes(plan, kind) > rk_memory_sum_kind_bytes(plan, largest))
            largest = kind;
    }
    return largest;
}

int64_t rk_memory_sum_largest_role(const struct rk_memory_sum *sum, int32_t rank)
{
    int64_t largest = 0;

    for (int64_t i = 1; i < sum->num_roles; i++) {
        if (rk_memory_sum_added_bytes(rk_memory_sum_plan_of(sum, i, rank)) >
            rk_memory_sum_added_bytes(rk_memory_sum_plan_of(sum, largest, rank)))
            largest = i;
    }
    return largest;
}

/* --- memory that several ranks share --- */

const char *rk_memory_sum_domain_name(const struct rk_memory_sum *sum, int32_t rank)
{
    return rk_json_as_string(rk_json_find_path(rk_memory_sum_last_plan(sum, rank), "device.memory_domain"),
                             "");
}

bool rk_memory_sum_find_domain(struct rk_memory_sum_domain *out, const struct rk_memory_sum *sum,
                               int32_t first, int64_t num_roles)
{
    const char *name = rk_memory_sum_domain_name(sum, first);
    int64_t given_back = 0;

    *out = (struct rk_memory_sum_domain){.free = INT64_MAX};
    for (int32_t rank = 0; *name && rank < sum->num_ranks; rank++) {
        if (strcmp(rk_memory_sum_domain_name(sum, rank), name) != 0)
            continue;
        if (rank < first)
            break;
        rk_str_appendf(&out->ranks, "%s%d", out->num_ranks++ ? ", " : "", rank);
        out->free = RK_MIN(out->free,
                           rk_memory_sum_bytes_at(rk_memory_sum_last_plan(sum, rank), "device.shared_free"));
        for (int64_t i = 0; i < num_roles; i++) {
            out->added += rk_memory_sum_added_bytes(rk_memory_sum_plan_of(sum, i, rank));
            given_back += rk_memory_sum_bytes_at(rk_memory_sum_plan_of(sum, i, rank), "given_back");
        }
    }
    out->free += out->num_ranks ? given_back : 0;
    if (out->num_ranks < 2)
        rk_str_fini(&out->ranks);
    return out->num_ranks >= 2;
}
