/* One call on the group, from its arguments to its result. The thread that called rk_driver_call runs it, or
 * a thread of its future.
 *
 * Calls of one driver whose ranks overlap are offered to the daemons one after the other, in the order in
 * which they were created: a daemon takes the next call once the one before it was committed or dropped. */
#ifndef RK_INVOCATION_INTERNAL_H
#define RK_INVOCATION_INTERNAL_H

#include "driver/driver_internal.h"
#include "driver/rk_call_parts.h"

#define RK_REQUEST_ID_BYTES 16

struct rk_invocation {
    struct rk_driver *driver;
    const char *role, *name; /* name: "role.method" as called; in the arena, like all that the header has */
    int64_t timeout_ms;
    void (*on_progress)(void *user, int32_t rank, const struct rk_progress *progress);
    void *user;
    const struct rk_method *method;
    struct rk_dispatch *dispatch;
    struct rk_scatter *scatter;
    struct rk_upload **uploads; /* [num_chunks] */
    struct rk_arena *arena;
    struct rk_json *options;
    uint8_t request_id[RK_REQUEST_ID_BYTES];
    struct rk_execute_header header;

    grpc_completion_queue *queue;
    int32_t num_ranks;
    struct rk_call_stream **streams; /* [num_ranks]; NULL: not addressed */
    struct rk_rank_error *errors;    /* [num_ranks] */
    bool *has_ended;                 /* [num_ranks] and its end was looked at */
    struct rk_unary *aborts;         /* [num_ranks] */
    int32_t num_ends, num_failures, num_reopened;
    struct rk_status *verdict; /* error of the driver itself, replaces the ranks' errors; returned to the
                                * caller */

    /* One message each way, without a commit: of a method that every rank runs by itself, when no other call
     * is in flight on its ranks. */
    bool is_brief;
    bool is_committed, is_abort_sent;
    int interrupts_seen;
    bool is_cancel_seen;
    int64_t abort_at_ns, give_up_at_ns;

    /* Set once by rk_invocation_cancel, from any thread: the text first, then the flag. */
    char cancel_reason[128];
    atomic_bool is_cancelled;

    /* Its position in the driver's turns, under their lock. */
    struct rk_invocation *next;
    bool is_offered, had_to_wait, has_calls_ahead;
};

/* --- invoke.c --- */
/* Checks the arguments, cuts and encodes the batch, and takes a place in the turns. Keeps references only to
 * the columns of the batch of `call`. */
struct rk_status *rk_invocation_create(struct rk_invocation **out, struct rk_driver *driver,
                                       const struct rk_driver_call_args *call) RK_NODISCARD;
/* Waits for its turn, runs it on the daemons, gathers. Once. The result is zero on failure. */
struct rk_status *rk_invocation_run(struct rk_invocation *inv, struct rk_driver_result *result) RK_NODISCARD;
/* From any thread, while the invocation lives; the first reason counts. */
void rk_invocation_cancel(struct rk_invocation *inv, const char *reason);

/* An empty one for `call`, of which only the names, the timeout and on_progress are taken. For the creators.
 */
struct rk_invocation *rk_invocation_alloc(struct rk_driver *driver, const struct rk_driver_call_args *call);

/* --- invoke_run.c --- */
/* OFFER and RUN on the daemons; the results stay in the streams. */
struct rk_status *rk_invocation_exchange(struct rk_invocation *inv) RK_NODISCARD;

/* --- turns.c --- */
void rk_turns_init(struct rk_turns *turns);
void rk_turns_fini(struct rk_turns *turns); /* no invocation may be left */
void rk_turns_enter(struct rk_turns *turns, struct rk_invocation *inv);
/* Returns when no earlier call on one of its ranks is still being offered, and the daemons have room in their
 * queues. CANCELLED when it was cancelled or the driver interrupted before. */
struct rk_status *rk_turns_wait(struct rk_turns *turns, struct rk_invocation *inv) RK_NODISCARD;
/* All its ranks are committed: the next one may be offered. */
void rk_turns_offered(struct rk_turns *turns, struct rk_invocation *inv);
void rk_turns_leave(struct rk_turns *turns, struct rk_invocation *inv);
bool rk_turns_is_idle(struct rk_turns *turns); /* no call is in flight */
/* FAILED_PRECONDITION while calls are in flight; `what` is not possible then. */
struct rk_status *rk_turns_check_idle(struct rk_turns *turns, const char *what) RK_NODISCARD;

#endif
