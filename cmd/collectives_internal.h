/* Finds out which ranks are in which collective: compares the flight recorders of several daemons. The
 * collectives of a group have the same numbers on all of its ranks, so a rank whose last number is lower than
 * the others' has not reached their collective. */
#ifndef RK_COLLECTIVES_INTERNAL_H
#define RK_COLLECTIVES_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/rk_flight.h"
#include "base/rk_json.h"
#include "base/rk_str.h"

/* Daemons are queried one after the other while they work, so only operations that have lasted longer are
 * reported as waiting. */
#define RK_COLLECTIVES_WAIT_MS 1000

typedef enum rk_collectives_state {
    RK_COLLECTIVES_EQUAL,   /* the last collective is the same on all ranks */
    RK_COLLECTIVES_MOVING,  /* they differ for less than RK_COLLECTIVES_WAIT_MS */
    RK_COLLECTIVES_WAITING, /* some ranks have not begun the one that others began */
    RK_COLLECTIVES_DIFFER,  /* ranks have started different operations with the same number: a defect of
                             * rankd */
    RK_COLLECTIVES_STATE_COUNT
} rk_collectives_state_t;

/* The last collective of one rank in one group. */
struct rk_collectives_place {
    int32_t rank;    /* rank in the world */
    uint64_t number; /* 0: a send or receive, which has no number */
    char what[RK_FLIGHT_WHAT_BYTES];
    bool has_ended;
    int64_t ms; /* time since it ended, or since it began if it is in progress */
};

struct rk_collectives_group {
    char name[RK_FLIGHT_WHERE_BYTES];
    int64_t tag;
    int32_t first, stride, size; /* of the world ranks; stride 0: unknown, the members are only known from
                                  * `places` */
    rk_collectives_state_t state;
    uint64_t lowest, highest;                     /* last numbers */
    RK_ARRAY(struct rk_collectives_place) places; /* by rank */
    RK_ARRAY(int32_t) missing;                    /* members without a recorded collective, sorted by rank */
};

struct rk_collectives_rank {
    int32_t rank;
    int64_t oldest_ms; /* age of the oldest recorded entry; older ones were overwritten */
};

/* Zero-initialised. */
struct rk_collectives {
    RK_ARRAY(struct rk_collectives_group) groups;
    RK_ARRAY(struct rk_collectives_place) transfers; /* sends and receives that have not ended */
    RK_ARRAY(struct rk_collectives_rank) ranks;      /* whose recorder was added */
};

/* Adds the flight recorder (the object with "operations") of one rank. Operations before the last Configure
 * belong to another world and are ignored. Invalid entries are skipped. */
void rk_collectives_add(struct rk_collectives *all, int32_t rank, const struct rk_json *flight);
/* Call after the last rank: sorts, and determines the state of every group. */
void rk_collectives_compare(struct rk_collectives *all);
void rk_collectives_fini(struct rk_collectives *all);
const char *rk_collectives_state_name(rk_collectives_state_t state); /* "waiting" */
/* Appends a line for every group and transfer that waits, and one with the counts of the others. */
void rk_collectives_format(const struct rk_collectives *all, struct rk_str *out);
struct rk_json *rk_collectives_json(const struct rk_collectives *all);

#endif
