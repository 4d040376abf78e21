#include "cmd/collectives_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_assert.h"

#define WAIT_MS RK_COLLECTIVES_WAIT_MS

static const char *const state_names[RK_COLLECTIVES_STATE_COUNT] = {"equal", "moving", "waiting", "differ"};

const char *rk_collectives_state_name(rk_collectives_state_t state)
{
    RK_ASSERT(state < RK_COLLECTIVES_STATE_COUNT);
    return state_names[state];
}

static const char *text_of(const struct rk_json *object, const char *key)
{
    return rk_json_as_string(rk_json_find(object, key), "");
}

static int64_t int_of(const struct rk_json *object, const char *key)
{
    return rk_json_as_int(rk_json_find(object, key), 0);
}

/* --- in --- */

static struct rk_collectives_group *get_group(struct rk_collectives *all, const struct rk_json *operation)
{
    const struct rk_json *id = rk_json_find(operation, "group");
    struct rk_collectives_group group = {.tag = int_of(id, "tag"),
                                         .first = (int32_t)int_of(id, "first"),
                                         .stride = (int32_t)int_of(id, "stride"),
                                         .size = (int32_t)int_of(id, "size")};

    snprintf(group.name, sizeof(group.name), "%s", text_of(operation, "where"));
    for (int64_t i = 0; i < all->groups.count; i++) {
        struct rk_collectives_group *one = &all->groups.items[i];

        if (one->tag == group.tag && one->first == group.first && one->stride == group.stride &&
            one->size == group.size && strcmp(one->name, group.name) == 0)
            return one;
    }
    rk_array_append(&all->groups, group);
    return &all->groups.items[all->groups.count - 1];
}

static struct rk_collectives_place *find_place(const struct rk_collectives_group *group, int32_t rank)
{
    for (int64_t i = 0; i < group->places.count; i++) {
        if (group->places.items[i].rank == rank)
            return &group->places.items[i];
    }
    return NULL;
}

static struct rk_collectives_place make_place(int32_t rank, const struct rk_json *operation, int64_t now_ns)
{
    const struct rk_json *end = rk_json_find(operation, "end_ns");
    struct rk_collectives_place place = {.rank = rank,
                                         .number = (uint64_t)int_of(operation, "seq"),
                                         .has_ended = end && !rk_json_is_null(end)};

    snprintf(place.what, sizeof(place.what), "%s", text_of(operation, "what"));
    place.ms = (now_ns - int_of(operation, place.has_ended ? "end_ns" : "begin_ns")) / 1000000;
    return place;
}

static void add_operation(struct rk_collectives *all, int32_t rank, const struct rk_json *operation,
                          int64_t now_ns)
{
    struct rk_collectives_place place = make_place(rank, operation, now_ns), *last;
    struct rk_collectives_group *group;

    if (place.number == 0) {
        if (!place.has_ended)
            rk_array_append(&all->transfers, place);
        return;
    }
    group = get_group(all, operation);
    last = find_place(group, rank);
    if (!last)
        rk_array_append(&group->places, place);
    else if (place.number >= last->number)
        *last = place;
}

/* When the last Configure of the recorder began; 0: none is recorded. */
static int64_t world_begin_ns(const struct rk_json *operations)
{
    int64_t begin_ns = 0;

    for (int64_t i = 0; i < rk_json_count(operations); i++) {
        const struct rk_json *operation = rk_json_at(operations, i);

        if (strcmp(text_of(operation, "kind"), "call") == 0 &&
            strcmp(text_of(operation, "what"), "configure") == 0)
            begin_ns = RK_MAX(begin_ns, int_of(operation, "begin_ns"));
    }
    return begin_ns;
}

void rk_collectives_add(struct rk_collectives *all, int32_t rank, const struct rk_json *flight)
{
    const struct rk_json *operations = rk_json_find(flight, "operations");
    int64_t begin_ns = world_begin_ns(operations), now_ns = int_of(flight, "monotonic_ns");

    struct rk_collectives_rank one = {.rank = rank};

    for (int64_t i = 0; i < rk_json_count(operations); i++) {
        const struct rk_json *operation = rk_json_at(operations, i);

        if (strcmp(text_of(operation, "kind"), "collective") != 0)
            continue;
        one.oldest_ms = RK_MAX(one.oldest_ms, (now_ns - int_of(operation, "begin_ns")) / 1000000);
        if (rk_json_find(operation, "group") && int_of(operation, "begin_ns") >= begin_ns)
            add_operation(all, rank, operation, now_ns);
    }
    rk_array_append(&all->ranks, one);
}

/* --- compare --- */

static int compare_places(const void *a, const void *b)
{
    const struct rk_collectives_place *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int compare_groups(const void *a, const void *b)
{
    const struct rk_collectives_group *x = a, *y = b;

    if (x->tag != y->tag)
        return x->tag < y->tag ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static const struct rk_collectives_rank *find_rank(const struct rk_collectives *all, int32_t rank)
{
    for (int64_t i = 0; i < all->ranks.count; i++) {
        if (all->ranks.items[i].rank == rank)
            return &all->ranks.items[i];
    }
    return NULL;
}

static void sort_places(struct rk_collectives_place *places, int64_t count)
{
    if (count > 0)
        qsort(places, (size_t)count, sizeof(*places), compare_places);
}

static void find_missing(struct rk_collectives_group *group)
{
    for (int32_t i = 0; group->stride > 0 && i < group->size; i++) {
        int32_t rank = group->first + i * group->stride;

        if (!find_place(group, rank))
            rk_array_append(&group->missing, rank);
    }
}

/* Whether ranks at the same number began different operations there. */
static bool have_mixed(const struct rk_collectives_group *group)
{
    for (int64_t i = 0; i < group->places.count; i++) {
        for (int64_t j = 0; j < i; j++) {
            if (group->places.items[i].number == group->places.items[j].number &&
                strcmp(group->places.items[i].what, group->places.items[j].what) != 0)
                return true;
        }
    }
    return false;
}

/* Among the entries with the highest number, the one with the oldest event; entries in progress come before
 * completed ones. */
static const struct rk_collectives_place *find_front(const struct rk_collectives_group *group)
{
    const struct rk_collectives_place *front = NULL;

    for (int64_t i = 0; i < group->places.count; i++) {
        const struct rk_collectives_place *place = &group->places.items[i];

        if (place->number != group->highest)
            continue;
        if (!front || (front->has_ended && !place->has_ended) ||
            (front->has_ended == place->has_ended && place->ms > front->ms))
            front = place;
    }
    RK_ASSERT(front);
    return front;
}

/* Whether a member without an entry is behind the others. It is not if its recorder was not read, or if its
 * recorder does not go back that far and the others have completed. */
static bool lacks_members(const struct rk_collectives *all, const struct rk_collectives_group *group,
                          const struct rk_collectives_place *front)
{
    if (!front->has_ended)
        return group->places.count < group->size;
    for (int64_t i = 0; i < group->missing.count; i++) {
        const struct rk_collectives_rank *one = find_rank(all, group->missing.items[i]);

        if (one && one->oldest_ms > front->ms + WAIT_MS)
            return true;
    }
    return false;
}

static void compare_group(const struct rk_collectives *all, struct rk_collectives_group *group)
{
    const struct rk_collectives_place *front;

    sort_places(group->places.items, group->places.count);
    find_missing(group);
    group->lowest = UINT64_MAX;
    for (int64_t i = 0; i < group->places.count; i++) {
        group->lowest = RK_MIN(group->lowest, group->places.items[i].number);
        group->highest = RK_MAX(group->highest, group->places.items[i].number);
    }
    front = find_front(group);
    if (have_mixed(group))
        group->state = RK_COLLECTIVES_DIFFER;
    else if (group->lowest < group->highest || lacks_members(all, group, front))
        group->state = front->ms >= WAIT_MS ? RK_COLLECTIVES_WAITING : RK_COLLECTIVES_MOVING;
    else
        group->state = RK_COLLECTIVES_EQUAL;
}

void rk_collectives_compare(struct rk_collectives *all)
{
    if (all->groups.count > 0)
        qsort(all->groups.items, (size_t)all->groups.count, sizeof(*all->groups.items), compare_groups);
    sort_places(all->transfers.items, all->transfers.count);
    for (int64_t i = 0; i < all->groups.count; i++)
        compare_group(all, &all->groups.items[i]);
}

void rk_collectives_fini(struct rk_collectives *all)
{
    for (int64_t i = 0; i < all->groups.count; i++) {
        rk_array_fini(&all->groups.items[i].places);
        rk_array_fini(&all->groups.items[i].missing);
    }
    rk_array_fini(&all->groups);
    rk_array_fini(&all->transfers);
    rk_array_fini(&all->ranks);
}

/* --- out --- */

/* "rank 3: in all_reduce #41 for 2.5 s", "rank 3: all_reduce #41 ended 2.5 s ago" */
static void format_place(const struct rk_collectives_place *place, struct rk_str *out)
{
    rk_str_appendf(out, "    rank %d: %s%s", place->rank, place->has_ended ? "" : "in ", place->what);
    if (place->number > 0)
        rk_str_appendf(out, " #%" PRIu64, place->number);
    rk_str_appendf(out, place->has_ended ? " ended %.1f s ago\n" : " for %.1f s\n", (double)place->ms / 1e3);
}

static void format_group(const struct rk_collectives *all, const struct rk_collectives_group *group,
                         struct rk_str *out)
{
    rk_str_appendf(out, "  group %s (%d ranks): ", group->name, group->size);
    if (group->state == RK_COLLECTIVES_DIFFER)
        rk_str_append(out, "ranks began different operations under one number\n");
    else
        rk_str_appendf(out, "not all ranks have begun #%" PRIu64 "\n", group->highest);
    for (int64_t i = 0; i < group->places.count; i++)
        format_place(&group->places.items[i], out);
    for (int64_t i = 0; i < group->missing.count; i++)
        rk_str_appendf(out, "    rank %d: %s\n", group->missing.items[i],
                       find_rank(all, group->missing.items[i]) ? "no collective of this group is on record"
                                                               : "its flight recorder could not be read");
    if (group->stride == 0 && group->places.count < group->size)
        rk_str_appendf(out, "    %d more: no collective of this group is on record\n",
                       group->size - (int32_t)group->places.count);
}

void rk_collectives_format(const struct rk_collectives *all, struct rk_str *out)
{
    int64_t counts[RK_COLLECTIVES_STATE_COUNT] = {0};

    for (int64_t i = 0; i < all->groups.count; i++)
        counts[all->groups.items[i].state]++;
    rk_str_appendf(out,
                   "collectives of %" PRId64 " ranks: %" PRId64 " groups at the same number, %" PRId64
                   " moving, %" PRId64 " waiting for ranks, %" PRId64 " with different operations\n",
                   all->ranks.count, counts[RK_COLLECTIVES_EQUAL], counts[RK_COLLECTIVES_MOVING],
                   counts[RK_COLLECTIVES_WAITING], counts[RK_COLLECTIVES_DIFFER]);
    for (int64_t i = 0; i < all->groups.count; i++) {
        const struct rk_collectives_group *group = &all->groups.items[i];

        if (group->state == RK_COLLECTIVES_WAITING || group->state == RK_COLLECTIVES_DIFFER)
            format_group(all, group, out);
    }
    for (int64_t i = 0; i < all->transfers.count; i++) {
        if (all->transfers.items[i].ms >= WAIT_MS)
            format_place(&all->transfers.items[i], out);
    }
}

static struct rk_json *place_json(const struct rk_collectives_place *place)
{
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "rank", rk_json_new_int(place->rank));
    if (place->number > 0)
        rk_json_set(json, "number", rk_json_new_int((int64_t)place->number));
    rk_json_set(json, "operation", rk_json_new_string(place->what));
    rk_json_set(json, "has_ended", rk_json_new_bool(place->has_ended));
    rk_json_set(json, "ms", rk_json_new_int(place->ms));
    return json;
}

static struct rk_json *group_json(const struct rk_collectives_group *group)
{
    struct rk_json *json = rk_json_new_object(), *ranks = rk_json_new_array(), *missing = rk_json_new_array();

    rk_json_set(json, "group", rk_json_new_string(group->name));
    rk_json_set(json, "tag", rk_json_new_int(group->tag));
    rk_json_set(json, "size", rk_json_new_int(group->size));
    rk_json_set(json, "state", rk_json_new_string(rk_collectives_state_name(group->state)));
    for (int64_t i = 0; i < group->places.count; i++)
        rk_json_append(ranks, place_json(&group->places.items[i]));
    for (int64_t i = 0; i < group->missing.count; i++)
        rk_json_append(missing, rk_json_new_int(group->missing.items[i]));
    rk_json_set(json, "ranks", ranks);
    rk_json_set(json, "missing_ranks", missing);
    return json;
}

struct rk_json *rk_collectives_json(const struct rk_collectives *all)
{
    struct rk_json *json = rk_json_new_object(), *groups = rk_json_new_array(),
                   *transfers = rk_json_new_array();

    for (int64_t i = 0; i < all->groups.count; i++)
        rk_json_append(groups, group_json(&all->groups.items[i]));
    for (int64_t i = 0; i < all->transfers.count; i++)
        rk_json_append(transfers, place_json(&all->transfers.items[i]));
    rk_json_set(json, "groups", groups);
    rk_json_set(json, "transfers", transfers);
    return json;
}
