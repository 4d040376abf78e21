/* Common code of the tests of NCCL worlds: a run of several ranks, and a tensor of ones. */
#ifndef RK_TEST_COMM_FIXTURE_H
#define RK_TEST_COMM_FIXTURE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "engine/rk_comm.h"
#include "tests/support/ranks.h"

RK_BEGIN_DECLS

#define COMM_RUN_S      40
#define COMM_MAX_RANKS  4
#define COMM_VERDICT_MS 10000 /* time within which survivors must get an error */

extern const int32_t comm_all_ranks[COMM_MAX_RANKS]; /* 0, 1, ... */

/* Shared by the ranks of one run. */
struct comm_run {
    struct rk_test_rendezvous *rendezvous, *again; /* rendezvous of the first world and of the survivors'
                                                    * world */
    struct rk_comm_world_config config;
    _Atomic int64_t fault_ns, delay_ms;
    _Atomic pid_t victim;
    atomic_int num_done;
};

struct comm_run *comm_run_create(void);
void comm_run_destroy(struct comm_run *run);
/* COMM_MAX_RANKS, or the number of devices. */
int32_t comm_num_ranks(void);
/* Runs fn, whose user is a struct comm_run, on that many ranks; all must pass. `config` of the worlds: NULL,
 * or the fields that differ from the defaults. */
void comm_expect_pass(rk_test_rank_fn_t fn, int32_t num_ranks, const struct rk_comm_world_config *config);
/* Runs fn on comm_num_ranks() ranks, the last of which must end by SIGKILL. Prints how long the others took.
 */
void comm_expect_killed(rk_test_rank_fn_t fn);
/* 0 if less than limit_ms have passed since fault_ns; stores the delay in delay_ms. */
int comm_check_in_time(struct comm_run *run, int64_t limit_ms);
/* 0 if the world is soon in no operation. */
int comm_check_idle(const struct rk_comm_world *world);
/* A thread that aborts the world with reason "lease lapsed" after 300 ms. */
void *comm_abort_later(void *world);
/* `count` ones at `data` on the stream's device; waits. Returns 0. */
int comm_fill_ones(struct rk_stream *stream, float *data, int64_t count);

RK_END_DECLS

#endif
