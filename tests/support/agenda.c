#include "tests/support/agenda.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define FIRST_CAPACITY 1024

void rk_test_agenda_fini(struct rk_test_agenda *agenda)
{
    rk_free(agenda->events);
    *agenda = (struct rk_test_agenda){0};
}

static bool is_before(const struct rk_test_event *a, const struct rk_test_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void swap(struct rk_test_event *events, int64_t i, int64_t j)
{
    struct rk_test_event event = events[i];

    events[i] = events[j];
    events[j] = event;
}

void rk_test_agenda_add(struct rk_test_agenda *agenda, const struct rk_test_event *event)
{
    int64_t i = agenda->num_events++;

    if (agenda->num_events > agenda->capacity) {
        agenda->capacity = RK_MAX(2 * agenda->capacity, FIRST_CAPACITY);
        agenda->events = rk_realloc(agenda->events, (size_t)agenda->capacity * sizeof(*agenda->events));
    }
    agenda->events[i] = *event;
    agenda->events[i].order = agenda->next_order++;
    for (; i > 0 && is_before(&agenda->events[i], &agenda->events[(i - 1) / 2]); i = (i - 1) / 2)
        swap(agenda->events, i, (i - 1) / 2);
}

/* The earliest of event i and the two below it. */
static int64_t find_least(const struct rk_test_agenda *agenda, int64_t i)
{
    int64_t least = i;

    for (int64_t child = 2 * i + 1; child <= 2 * i + 2 && child < agenda->num_events; child++) {
        if (is_before(&agenda->events[child], &agenda->events[least]))
            least = child;
    }
    return least;
}

struct rk_test_event rk_test_agenda_take(struct rk_test_agenda *agenda)
{
    struct rk_test_event first = agenda->events[0];

    RK_ASSERT(agenda->num_events > 0);
    agenda->events[0] = agenda->events[--agenda->num_events];
    for (int64_t i = 0, least = find_least(agenda, 0); least != i; least = find_least(agenda, i)) {
        swap(agenda->events, i, least);
        i = least;
    }
    return first;
}
