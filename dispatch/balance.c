/* Karmarkar-Karp, the largest differencing method, in verl's form (which fixes every tie).
 *
 * A state holds k sets, descending. Two states merge so that the largest set of one absorbs the smallest of
 * the other, and so on; the two states with the largest spread (first sum - last sum) merge first. What is
 * left in the end are the k parts. Sets are lists threaded through the items, and a state stores only its
 * sets that hold something (they come first), so that n items in k parts take O(n) memory. */
#include "dispatch/rk_plan.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NO_ITEM (-1)

struct item_set {
    int64_t sum;
    int64_t count;
    int64_t head, tail; /* items; NO_ITEM when empty */
};

struct state {
    int32_t num_sets; /* sets that hold something; the other k - num_sets are empty */
    struct item_set *sets;
};

struct solver {
    int64_t *next; /* [num_items] the next item of its set */
    int32_t k;
    struct state *heap; /* binary heap, the state to merge next on top */
    int64_t heap_count;
};

int64_t rk_workload_of(struct rk_workload workload, int64_t seqlen)
{
    return workload.linear * seqlen + seqlen * seqlen;
}

/* Ascending: by sum, number of items, then the lists of (index, value). */
static int compare_sets(const struct item_set *a, const struct item_set *b, const struct solver *solver)
{
    if (a->sum != b->sum)
        return a->sum < b->sum ? -1 : 1;
    if (a->count != b->count)
        return a->count < b->count ? -1 : 1;
    for (int64_t i = a->head, j = b->head; i != NO_ITEM; i = solver->next[i], j = solver->next[j]) {
        if (i != j)
            return i < j ? -1 : 1;
    }
    return 0;
}

static int compare_descending(const void *a, const void *b, void *solver)
{
    return compare_sets(b, a, solver);
}

static int64_t spread_of(const struct solver *solver, const struct state *state)
{
    int64_t last = state->num_sets == solver->k ? state->sets[state->num_sets - 1].sum : 0;

    return state->sets[0].sum - last;
}

/* Whether a is merged before b. */
static bool goes_first(const struct solver *solver, const struct state *a, const struct state *b)
{
    int64_t spread_a = spread_of(solver, a), spread_b = spread_of(solver, b);

    if (spread_a != spread_b)
        return spread_a > spread_b;
    return compare_sets(&a->sets[0], &b->sets[0], solver) > 0;
}

static void swap_states(struct state *a, struct state *b)
{
    struct state copy = *a;

    *a = *b;
    *b = copy;
}

static void heap_push(struct solver *solver, struct state state)
{
    int64_t i = solver->heap_count++;

    solver->heap[i] = state;
    while (i > 0 && goes_first(solver, &solver->heap[i], &solver->heap[(i - 1) / 2])) {
        swap_states(&solver->heap[i], &solver->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
}

static struct state heap_pop(struct solver *solver)
{
    struct state top = solver->heap[0];
    int64_t i = 0;

    RK_ASSERT(solver->heap_count > 0);
    solver->heap[0] = solver->heap[--solver->heap_count];
    for (;;) {
        int64_t first = i;

        for (int64_t child = 2 * i + 1; child <= 2 * i + 2 && child < solver->heap_count; child++) {
            if (goes_first(solver, &solver->heap[child], &solver->heap[first]))
                first = child;
        }
        if (first == i)
            return top;
        swap_states(&solver->heap[i], &solver->heap[first]);
        i = first;
    }
}

static void absorb(const struct solver *solver, struct item_set *set, const struct item_set *other)
{
    if (set->count == 0) {
        *set = *other;
        return;
    }
    solver->next[set->tail] = other->head;
    set->tail = other->tail;
    set->sum += other->sum;
    set->count += other->count;
}

/* Set i of a absorbs set k - 1 - i of b; takes both over. */
static struct state merge(const struct solver *solver, struct state a, struct state b)
{
    int64_t both = (int64_t)a.num_sets + b.num_sets;
    int32_t num_sets = (int32_t)RK_MIN(both, solver->k);

    a.sets = rk_realloc(a.sets, (size_t)num_sets * sizeof(*a.sets));
    for (int32_t i = a.num_sets; i < num_sets; i++)
        a.sets[i] = (struct item_set){.head = NO_ITEM, .tail = NO_ITEM};
    /* b's sets are merged into empty ones of a where there are enough; these need not be in order before the
     * sort. */
    for (int32_t j = 0; j < b.num_sets; j++) {
        int32_t place = both <= solver->k ? a.num_sets + j : solver->k - 1 - j;

        absorb(solver, &a.sets[place], &b.sets[j]);
    }
    rk_free(b.sets);
    a.num_sets = num_sets;
    qsort_r(a.sets, (size_t)num_sets, sizeof(*a.sets), compare_descending, (void *)solver);
    return a;
}

struct ranked {
    int64_t value, index;
};

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->value != y->value)
        return x->value < y->value ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* One state per item, or one per group of k items of adjacent size. */
static void push_items(struct solver *solver, const int64_t *values, int64_t num_items, bool equal_size)
{
    struct ranked *ranked = rk_calloc((size_t)num_items, sizeof(*ranked));
    int32_t per_state = equal_size ? solver->k : 1;

    for (int64_t i = 0; i < num_items; i++)
        ranked[i] = (struct ranked){.value = values[i], .index = i};
    qsort(ranked, (size_t)num_items, sizeof(*ranked), compare_ranked);
    for (int64_t i = 0; i < num_items; i += per_state) {
        struct state state = {.num_sets = per_state,
                              .sets = rk_calloc((size_t)per_state, sizeof(struct item_set))};

        for (int32_t j = 0; j < per_state; j++) {
            const struct ranked *item = &ranked[i + j];

            state.sets[j] =
                (struct item_set){.sum = item->value, .count = 1, .head = item->index, .tail = item->index};
        }
        qsort_r(state.sets, (size_t)per_state, sizeof(*state.sets), compare_descending, solver);
        heap_push(solver, state);
    }
    rk_free(ranked);
}

static struct rk_status *check_items(const int64_t *values, int64_t num_items, int32_t k, bool equal_size)
{
    int64_t sum = 0;

    if (k < 1 || num_items < k)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%" PRId64 " items for %d parts", num_items, k);
    if (equal_size && num_items % k)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%" PRId64 " items do not divide into %d parts of equal size",
                       num_items, k);
    for (int64_t i = 0; i < num_items; i++) {
        if (values[i] < 0 || !rk_add_i64(sum, values[i], &sum))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "item %" PRId64 ": the value %" PRId64 " is negative or too large", i, values[i]);
    }
    return NULL;
}

struct rk_status *rk_balance_partitions(int32_t *part_of, const int64_t *values, int64_t num_items, int32_t k,
                                        bool equal_size)
{
    struct solver solver = {.k = k};
    struct state parts;

    RK_TRY(check_items(values, num_items, k, equal_size));
    solver.next = rk_calloc((size_t)num_items, sizeof(*solver.next));
    solver.heap = rk_calloc((size_t)num_items, sizeof(*solver.heap));
    for (int64_t i = 0; i < num_items; i++)
        solver.next[i] = NO_ITEM;
    push_items(&solver, values, num_items, equal_size);
    while (solver.heap_count > 1) {
        struct state first = heap_pop(&solver);

        heap_push(&solver, merge(&solver, first, heap_pop(&solver)));
    }
    parts = heap_pop(&solver);
    RK_ASSERT(parts.num_sets == k);
    for (int32_t part = 0; part < k; part++) {
        for (int64_t i = parts.sets[part].head; i != NO_ITEM; i = solver.next[i])
            part_of[i] = part;
    }
    rk_free(parts.sets);
    rk_free(solver.next);
    rk_free(solver.heap);
    return NULL;
}
