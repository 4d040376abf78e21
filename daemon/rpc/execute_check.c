/* The checks of an Execute header, in this order: can this daemon run the method, is the input valid for the
 * method, is there memory for it. A header that fails is
 * refused before a byte of the body is sent. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_fault.h"
#include "base/rk_host_memory.h"
#include "daemon/rpc/execute.h"
#include "dispatch/rk_dispatch.h"
#include "proto/limits.h"

void rk_execute_digest(const struct rk_execute_header *header, uint8_t digest[RK_SHA256_BYTES])
{
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER, .header = *header};
    struct rk_str packed = {0};

    request.header.fence = (struct rk_fence){0};
    request.header.seq = 0;
    request.header.mesh_generation = 0;
    rk_pack_execute_request(&packed, &request);
    rk_sha256_of(packed.text, packed.bytes, digest);
    rk_str_fini(&packed);
}

static void hash_part(struct rk_sha256 *sha, const char *text, size_t bytes)
{
    uint64_t length = bytes;

    rk_sha256_update(sha, &length, sizeof(length)); /* so that parts stay separate */
    rk_sha256_update(sha, text, bytes);
}

/* Hash of what all ranks of a call must agree on before one of them starts. */
static void hash_plan(struct rk_operation *operation, const struct rk_execute_header *header)
{
    char *options = rk_json_dump(operation->job->call.options, 0, true);
    struct rk_str plan = {0};
    struct rk_sha256 sha;

    rk_pack_plan(&plan, &header->plan);
    rk_sha256_init(&sha);
    hash_part(&sha, header->role, strlen(header->role));
    hash_part(&sha, operation->job->call.method->name, strlen(operation->job->call.method->name));
    hash_part(&sha, options, strlen(options));
    hash_part(&sha, rk_str_text(&plan), plan.bytes);
    rk_sha256_final(&sha, operation->plan_hash);
    rk_str_fini(&plan);
    rk_free(options);
}

/* --- can this daemon run it --- */

/* Only when nothing is queued: a queued call may be the init_model that this call needs. The worker
 * checks again when the call's turn comes. */
static struct rk_status *check_model(const struct rk_daemon *daemon,
                                     const struct rk_worker_snapshot *snapshot,
                                     const struct rk_execute_header *header, const struct rk_method *method)
{
    rk_role_state_t state = RK_ROLE_STATE_EMPTY;

    if ((method->flags & RK_MF_ANY_STATE) || rk_requests_num_running(&daemon->requests) > 0)
        return NULL;
    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        if (strcmp(snapshot->roles[i].role, header->role) == 0)
            state = snapshot->roles[i].state;
    }
    if (state == RK_ROLE_STATE_AWAKE)
        return NULL;
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL", "role '%s' is %s, expected %s", header->role,
                          rk_role_state_name(state), rk_role_state_name(RK_ROLE_STATE_AWAKE));
}

static const struct rk_mesh *find_mesh(const void *group, const char *role)
{
    return rk_group_find_mesh(group, role);
}

static int32_t num_addressed(const struct rk_dispatch *dispatch)
{
    int32_t count = 0;

    for (int32_t rank = 0; rank < dispatch->world_size; rank++)
        count += dispatch->chunk_of_rank[rank] >= 0;
    return count;
}

static struct rk_status *check_place(const struct rk_daemon *daemon, const struct rk_execute_header *header,
                                     const struct rk_dispatch *dispatch)
{
    if (dispatch->chunk_of_rank[daemon->group.rank] < 0)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                              "%s.%s does not address rank %d, which is not part of its mesh", header->role,
                              header->method, daemon->group.rank);
    if (!header->two_phase && !header->brief && num_addressed(dispatch) > 1)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "two_phase=false is allowed only for roles of one rank, '%s' has %d",
                              header->role, num_addressed(dispatch));
    return NULL;
}

static struct rk_status *check_brief(const struct rk_execute_header *header, const struct rk_method *method)
{
    if (!header->brief)
        return NULL;
    if (!(method->flags & RK_MF_ALONE))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "brief=true is allowed only for methods that run alone, not %s", method->name);
    if (header->two_phase)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "brief=true and two_phase=true exclude each other");
    if (header->seq != 0)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "seq=%" PRIu64 ", expected 0 in a brief call",
                              header->seq);
    return NULL;
}

/* The caller owns *dispatch, on failure too. */
static struct rk_status *check_position(const struct rk_daemon *daemon,
                                        const struct rk_execute_header *header,
                                        const struct rk_method **method, struct rk_dispatch **dispatch)
{
    struct rk_worker_snapshot snapshot;

    RK_TRY(rk_method_check_role(method, header->role, header->method));
    RK_TRY(check_brief(header, *method));
    rk_worker_get_snapshot(daemon->worker, &snapshot);
    if (!snapshot.is_configured)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                              "the daemon has no communicators, expected a Configure first");
    if (header->mesh_generation != snapshot.mesh_generation)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_MESH",
                              "mesh_generation=%" PRIu64 ", the daemon was configured with %" PRIu64,
                              header->mesh_generation, snapshot.mesh_generation);
    RK_TRY(rk_dispatch_create_method(dispatch, *method, header->role, find_mesh, &daemon->group));
    RK_TRY(check_place(daemon, header, *dispatch));
    return check_model(daemon, &snapshot, header, *method);
}

/* --- is the input valid for the method --- */

static struct rk_status *check_want(const struct rk_execute_header *header, const struct rk_method *method)
{
    for (int64_t i = 0; i < header->num_want; i++) {
        int64_t column = 0;

        while (column < method->num_out && strcmp(method->out[column].name, header->want[i]) != 0)
            column++;
        if (column == method->num_out)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "want: %s returns no column '%s'",
                                  method->name, header->want[i]);
    }
    return NULL;
}

/* Replicas of the micro-batch plan are the chunks of the method's dispatch. */
static struct rk_status *check_plan(const struct rk_execute_header *header, const struct rk_method *method,
                                    const struct rk_dispatch *dispatch)
{
    if (!(method->flags & RK_MF_PLAN)) {
        if (header->plan.num_mini > 0)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s takes no plan", method->name);
        return NULL;
    }
    if (header->plan.num_mini == 0)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s needs a plan", method->name);
    return rk_plan_check(&header->plan, header->input.batch_size, dispatch->num_chunks);
}

static struct rk_status *complete_options(struct rk_job_call *job, const struct rk_execute_header *header,
                                          const struct rk_method *method)
{
    struct rk_json *given = rk_meta_to_json(&header->options);
    struct rk_status *st = rk_method_complete_options(&job->options, method, given);

    rk_json_free(given);
    return st;
}

static struct rk_status *check_input(struct rk_job_call *job, const struct rk_execute_header *header,
                                     const struct rk_dispatch *dispatch)
{
    RK_TRY(rk_status_at_field(rk_batch_spec_check(&header->input, job->method), "header.input"));
    RK_TRY(rk_status_at_field(complete_options(job, header, job->method), "header"));
    RK_TRY(rk_status_at_field(check_plan(header, job->method, dispatch), "header.plan"));
    return rk_status_at_field(check_want(header, job->method), "header.want");
}

/* --- is there memory --- */

/* Memory of the gRPC library and the engine in addition to a batch that is received. */
#define SPARE_BYTES       ((uint64_t)32 << 20)
#define RETRY_MS          1000                /* the running call may have ended by then */
#define SMALL_BATCH_BYTES ((uint64_t)1 << 20) /* accepted without the check */

/* Without the check the kernel would kill the daemon while it receives the bytes. */
static struct rk_status *check_memory(uint64_t bytes)
{
    uint64_t free_bytes;

    if (bytes < SMALL_BATCH_BYTES)
        return NULL;
    free_bytes = RK_FAULT("daemon.memory") ? SPARE_BYTES : rk_host_free_bytes("");
    if (free_bytes > SPARE_BYTES && bytes <= free_bytes - SPARE_BYTES)
        return NULL;
    return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "HOST_OOM",
                          "the batch has %" PRIu64 " bytes, the host or a control group of the daemon leaves "
                          "%" PRIu64 ", of which %" PRIu64 " are kept free",
                          bytes, free_bytes, SPARE_BYTES);
}

/* Waiting helps unless the batch is larger than the limit. */
static struct rk_status *fail_inflight(uint64_t bytes, uint64_t taken, uint64_t limit)
{
    struct rk_status *st =
        RK_FAIL(RK_RESOURCE_EXHAUSTED,
                "the batch has %" PRIu64 " bytes, %" PRIu64 " of rpc.max_inflight=%" PRIu64 " are taken",
                bytes, taken, limit);

    return bytes <= limit ? rk_status_retry_after(st, RETRY_MS) : st;
}

static struct rk_status *reserve(struct rk_operation *operation, struct rk_chunk_sink *upload,
                                 const struct rk_execute_header *header, struct rk_arena *arena)
{
    struct rk_daemon *daemon = operation->daemon;
    uint64_t limit = (uint64_t)daemon->settings.max_inflight_bytes;

    if (rk_requests_num_running(&daemon->requests) >= RK_LIMIT_QUEUED_CALLS)
        return rk_status_retry_after(
            RK_FAIL(RK_RESOURCE_EXHAUSTED, "%d calls are queued already", RK_LIMIT_QUEUED_CALLS), RETRY_MS);
    RK_TRY(rk_status_at_field(rk_assembler_create(&upload->assembler, &header->input, 0), "header.input"));
    upload->total_bytes = rk_assembler_total_bytes(upload->assembler);
    if (upload->total_bytes > limit - daemon->inflight_bytes)
        return fail_inflight(upload->total_bytes, daemon->inflight_bytes, limit);
    RK_TRY(check_memory(upload->total_bytes));
    if (operation->job->call.method->num_in > 0)
        RK_TRY(rk_batch_from_spec(&operation->job->call.input, &upload->data, arena, &header->input));
    operation->input_bytes = upload->total_bytes;
    daemon->inflight_bytes += upload->total_bytes;
    return NULL;
}

struct rk_status *rk_execute_check(struct rk_operation *operation, struct rk_chunk_sink *upload,
                                   const struct rk_execute_header *header, struct rk_arena *arena)
{
    struct rk_daemon *daemon = operation->daemon;
    struct rk_job_call *job = &operation->job->call;
    struct rk_dispatch *dispatch = NULL;
    struct rk_status *st;

    job->plan_arena = arena;
    st = check_position(daemon, header, &job->method, &dispatch);
    if (!st)
        st = check_input(job, header, dispatch);
    rk_dispatch_destroy(dispatch);
    RK_TRY(st);
    RK_TRY(reserve(operation, upload, header, arena));
    snprintf(job->role, sizeof(job->role), "%s", header->role);
    job->plan = header->plan;
    job->collect = header->collect;
    job->timeout_ms = header->timeout_ms;
    operation->header = *header;
    hash_plan(operation, header);
    return NULL;
}
