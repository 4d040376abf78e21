/* Events of a simulation by time; those of the same time in the order in which they were added. */
#ifndef RK_TEST_AGENDA_H
#define RK_TEST_AGENDA_H

#include <stdint.h>

#include "base/rk_base.h"

RK_BEGIN_DECLS

struct rk_test_event {
    int64_t at_ns;
    uint64_t order; /* set by rk_test_agenda_add */
    void (*run)(void *user, uint64_t arg);
    void *user;
    uint64_t arg;
    void *owner; /* for the simulation */
};

struct rk_test_agenda {
    struct rk_test_event *events; /* heap */
    int64_t num_events, capacity;
    uint64_t next_order;
};

/* All zero is an empty one. */
void rk_test_agenda_fini(struct rk_test_agenda *agenda);
void rk_test_agenda_add(struct rk_test_agenda *agenda, const struct rk_test_event *event);
/* Removes the earliest event. There must be one. */
struct rk_test_event rk_test_agenda_take(struct rk_test_agenda *agenda);

RK_END_DECLS

#endif
