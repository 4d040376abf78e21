/* What test_sim and test_daemon_protocol share: time, events, chance and the first failure of a seed. The
 * functions of the daemon that both leave out are in common.c, too. */
#ifndef RK_TEST_SIM_COMMON_H
#define RK_TEST_SIM_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_rng.h"
#include "tests/support/agenda.h"

#define SIM_MS(ms) ((int64_t)(ms)*1000000)

struct rk_operation;

struct sim_world {
    int64_t now_ns;
    struct rk_rng rng;
    struct rk_test_agenda agenda;
    bool has_faults;   /* until the last program starts */
    char failure[512]; /* "" while all checks pass */
};

/* Starts the clock of a seed and makes it that of the process; `world` is zeroed. */
void sim_world_begin(struct sim_world *world, uint64_t seed);
void sim_world_end(struct sim_world *world);

/* Failure of the world that has begun last. */
void sim_fail(const char *fmt, ...) RK_PRINTF(1, 2);
bool sim_chance(double probability); /* false once the faults are over */
int64_t sim_between_ns(int64_t from_ms, int64_t to_ms);

/* The number in the environment variable, or the fallback. */
int64_t sim_number(const char *name, int64_t fallback);

/* Calls of a rank run in the order of their epochs and numbers. The newest call is kept in *epoch and *seq.
 */
void sim_check_order(int32_t rank, const struct rk_operation *operation, uint64_t *epoch, uint64_t *seq);

#endif
