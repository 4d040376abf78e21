/* A call whose parts for the ranks exist already, as in a recording: it is sent again without a dispatch
 * mode. One invocation is one call, from its arguments to its result (driver/invocation_internal.h). */
#ifndef RK_CALL_PARTS_H
#define RK_CALL_PARTS_H

#include "driver/rk_driver.h"

struct rk_invocation;

struct rk_call_part {
    bool is_addressed, collects;
    const struct rk_batch *input; /* NULL: none */
};

/* The header without fence, seq, request_id, mesh_generation, input and collect, which are the call's own; it
 * and parts[num_ranks] are borrowed until the invocation is destroyed. */
struct rk_status *rk_invocation_create_parts(struct rk_invocation **out, struct rk_driver *driver,
                                             const struct rk_execute_header *header,
                                             const struct rk_call_part *parts) RK_NODISCARD;
/* Waits for its turn and runs it on the daemons; once. */
struct rk_status *rk_invocation_run_parts(struct rk_invocation *inv) RK_NODISCARD;
/* The answer of an addressed rank, after a run without an error: its batch, which the caller destroys (NULL
 * without an output), and its result, which is borrowed. */
struct rk_batch *rk_invocation_take_output(struct rk_invocation *inv, int32_t rank);
const struct rk_execute_result *rk_invocation_result(const struct rk_invocation *inv, int32_t rank);
void rk_invocation_destroy(struct rk_invocation *inv);

#endif
