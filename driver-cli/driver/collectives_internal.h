/* Which ranks are in which collective: the flight recorders of several daemons, put side by side. A group of
 * ranks numbers its collectives alike on all of them, so a rank whose last number is lower than that of the
 * others has not arrived where they are. */
#ifndef RK_COLLECTIVES_INTERNAL_H
#define RK_COLLECTIVES_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/rk_flight.h"
#include "base/rk_json.h"
#include "base/rk_str.h"

/* Daemons are asked one after the other while they work: only what has lasted longer is called waiting. */
#define RK_COLLECTIVES_WAIT_MS 1000

typedef enum rk_collectives_state {
    RK_COLLECTIVES_EQUAL,   /* all ranks have begun the same collective last */
    RK_COLLECTIVES_MOVING,  /* they differ, but not for long */
    RK_COLLECTIVES_WAITING, /* some ranks have not begun the one that others began */
    RK_COLLECTIVES_DIFFER,  /* ranks have begun different operations under one number: an error of rankd */
    RK_COLLECTIVES_STATE_COUNT
} rk_collectives_state_t;

/* The last collective of one rank in one group. */
struct rk_collectives_place {
    int32_t rank;    /* of the world */
    uint64_t number; /* 0: a send or receive, which have none */
    char what[RK_FLIGHT_WHAT_BYTES];
    bool has_ended;
    int64_t ms; /* since it ended, else since it began */
};

struct rk_collectives_group {
    char name[RK_FLIGHT_WHERE_BYTES];
    int64_t tag;
    int32_t first, stride, size; /* of the world ranks; stride 0: only the places tell who is in it */
    rk_collectives_state_t state;
    uint64_t lowest, highest;                     /* last numbers */
    RK_ARRAY(struct rk_collectives_place) places; /* by rank */
    RK_ARRAY(int32_t) missing;                    /* members without a collective on record, by rank */
};

struct rk_collectives_rank {
    int32_t rank;
    int64_t oldest_ms; /* how far its recorder goes back: older entries were overwritten */
};

/* Zero-initialised. */
struct rk_collectives {
    RK_ARRAY(struct rk_collectives_group) groups;
    RK_ARRAY(struct rk_collectives_place) transfers; /* sends and receives that have not ended */
    RK_ARRAY(struct rk_collectives_rank) ranks;      /* whose recorder was added */
};

/* Adds the flight recorder (the object with "operations") of one rank. Operations before the last Configure
 * are left out: they are of another world. Anything in it that is no operation is skipped. */
void rk_collectives_add(struct rk_collectives *all, int32_t rank, const struct rk_json *flight);
/* After the last rank: sorts, and finds the state of every group. */
void rk_collectives_compare(struct rk_collectives *all);
void rk_collectives_fini(struct rk_collectives *all);
const char *rk_collectives_state_name(rk_collectives_state_t state); /* "waiting" */
/* Appends a line for every group and transfer that waits, and one with the counts of the others. */
void rk_collectives_format(const struct rk_collectives *all, struct rk_str *out);
struct rk_json *rk_collectives_json(const struct rk_collectives *all);

#endif
