/* Tests of several ranks: every rank is a forked process, so that kills, stops and leaks are real.
 *
 * A rank function returns 0 when its rank passed; the RK_RANK_* checks print and return 1. It must not use
 * cmocka's assertions: they would jump back into the parent's runner, in the child. Fork before any threads
 * (OpenMP, OpenBLAS) are started in the parent. Ranks end by exit(), so LeakSanitizer runs in each. */
#ifndef RK_TEST_RANKS_H
#define RK_TEST_RANKS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "engine/rk_comm.h"

RK_BEGIN_DECLS

#define RK_TEST_MAX_RANKS 16

typedef int (*rk_test_rank_fn_t)(int32_t rank, int32_t num_ranks, void *user);

struct rk_test_rank_result {
    pid_t pid;
    int exit_code; /* -1 if a signal ended it */
    int signal;    /* 0 if it exited */
    bool timed_out;
};

/* Runs fn in `num_ranks` processes and waits for all; ranks that run longer than timeout_s are killed. Prints
 * the output of failed ranks. Returns the number of ranks that did not exit with 0. */
int rk_test_run_ranks(int32_t num_ranks, rk_test_rank_fn_t fn, void *user, int timeout_s);
/* rk_test_run_ranks with every rank's end in results[num_ranks], for tests that kill ranks. Output of ranks
 * ended by a signal is not printed. */
int rk_test_run_ranks_results(int32_t num_ranks, rk_test_rank_fn_t fn, void *user, int timeout_s,
                              struct rk_test_rank_result *results);

/* Zeroed memory that the ranks of later runs share with each other and with this process. */
void *rk_test_shared_alloc(size_t bytes);
void rk_test_shared_free(void *area, size_t bytes);

/* Open file descriptors of this process. */
int rk_test_num_fds(void);

/* --- a connected world for every rank --- */

/* Exchange of the ranks' endpoints; in shared memory, for any number of worlds. */
struct rk_test_rendezvous;

struct rk_test_rendezvous *rk_test_rendezvous_create(void);
void rk_test_rendezvous_destroy(struct rk_test_rendezvous *rendezvous);
/* Opens an endpoint, waits for those of the others and joins. Fields of `config` that are 0 or NULL (rank,
 * world size, addresses, id always) are filled in, the device (rk_test_rank_device) too; NULL: all defaults.
 * Every rank calls the same number of times. The collectives are those of the device, or RK_TEST_COMM. */
struct rk_status *rk_test_world_create(struct rk_comm_world **out, struct rk_test_rendezvous *rendezvous,
                                       int32_t rank, int32_t num_ranks, const char *listen_host,
                                       const struct rk_comm_world_config *config) RK_NODISCARD;
/* The device of this rank and a stream on it, for the tensors of collectives; created at the first call,
 * and closed when the process exits. */
struct rk_device *rk_test_rank_device(int32_t rank);
struct rk_stream *rk_test_rank_stream(int32_t rank);
/* Waits until all ranks have arrived here, independent of the state of their worlds. A rank that waits too
 * long fails, because another one has failed. */
void rk_test_meet(struct rk_test_rendezvous *rendezvous, int32_t num_ranks);

typedef int (*rk_test_world_fn_t)(struct rk_comm_world *world, void *user);

/* rk_test_run_ranks with a world ("unix" or an address to listen on) made before and destroyed after fn. */
int rk_test_run_world(int32_t num_ranks, const char *listen_host, rk_test_world_fn_t fn, void *user,
                      int timeout_s);

/* rk_test_run_world for a row of a table of layouts, over Unix sockets: fails the test with the label of the
 * row unless all ranks passed. A row with more ranks than devices is skipped. */
void rk_test_run_case(const char *label, int32_t num_ranks, rk_test_world_fn_t fn, const void *row,
                      int timeout_s);

/* --- checks in a rank --- */

/* 0 if `st`, which it takes, has this code and reason and its message contains `text`; otherwise prints it
 * and returns 1.
 */
int rk_test_rank_check_error(struct rk_status *st, rk_code_t code, const char *reason, const char *text);
/* Prints and frees a failure; true for NULL. */
bool rk_test_rank_ok(struct rk_status *st, const char *expr, const char *file, int line);

#define RK_RANK_CHECK(cond, ...)                                       \
    do {                                                               \
        if (!(cond)) {                                                 \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                              \
            fputc('\n', stderr);                                       \
            return 1;                                                  \
        }                                                              \
    } while (0)
#define RK_RANK_OK(expr)                                         \
    do {                                                         \
        if (!rk_test_rank_ok((expr), #expr, __FILE__, __LINE__)) \
            return 1;                                            \
    } while (0)

RK_END_DECLS

#endif
