/* Tables of method calls: the method list, micro-batch plan, Execute, Cancel. */
#include "proto/record_internal.h"

#include "proto/limits.h"
#include "rankd/v1/common.pb-c.h"
#include "rankd/v1/worker.pb-c.h"

#define ID_BYTES     16 /* request_id */
#define DIGEST_BYTES 32 /* SHA-256 */

/* --- micro-batch plan --- */
static const struct rk_field micro_batch_fields[] = {
    RK_MANY(U32S, rk_micro_batch, "row", rows, num_rows, BYTES),
    RK_ONE(U64, rk_micro_batch, "num_tokens", num_tokens),
};
static RK_RECORD(record_micro_batch, rankd__v1__micro_batch__descriptor, rk_micro_batch, micro_batch_fields);

static const struct rk_field mini_batch_fields[] = {
    RK_ONE(INDEX, rk_mini_batch, "num_micro", num_micro),
    RK_SUBS(rk_mini_batch, "micro", micro, num_entries, MICRO, record_micro_batch),
    RK_ONE(U64, rk_mini_batch, "num_tokens", num_tokens),
    RK_ONE(U64, rk_mini_batch, "num_sequences", num_sequences),
};
static RK_RECORD(record_mini_batch, rankd__v1__mini_batch__descriptor, rk_mini_batch, mini_batch_fields);

static const struct rk_field plan_fields[] = {
    RK_SUBS(rk_plan, "mini", mini, num_mini, MICRO, record_mini_batch),
};
RK_RECORD(rk_record_plan, rankd__v1__plan__descriptor, rk_plan, plan_fields);

/* --- metrics and progress --- */
static const struct rk_field metric_fields[] = {
    RK_ONE(TEXT, rk_metric, "name", name, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(REAL, rk_metric, "value", value),
    RK_ONE(TEXT, rk_metric, "unit", unit, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_metric, "reduce", reduce, .max_bytes = RK_LIMIT_NAME_BYTES),
};
RK_RECORD(rk_record_metric, rankd__v1__metric__descriptor, rk_metric, metric_fields);

static const struct rk_field progress_fields[] = {
    RK_ONE(TEXT, rk_progress, "phase", phase, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_progress, "done", done),
    RK_ONE(U64, rk_progress, "total", total),
    RK_SUBS(rk_progress, "metric", metrics, num_metrics, METRICS, rk_record_metric),
    RK_ONE(U64, rk_progress, "monotonic_ns", monotonic_ns),
};
RK_RECORD(rk_record_progress, rankd__v1__progress__descriptor, rk_progress, progress_fields);

/* --- the method list --- */
static const struct rk_field method_info_fields[] = {
    RK_ONE(TEXT, rk_method_info, "name", name, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_method_info, "doc", doc, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_MANY(TEXTS, rk_method_info, "role", roles, num_roles, LIST, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_method_info, "dispatch", dispatch, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_method_info, "execute", execute, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(BOOL, rk_method_info, "pure", is_pure),
    RK_ONE(BOOL, rk_method_info, "mutates", is_mutating),
    RK_SUBS(rk_method_info, "input", input, num_input, LIST, rk_record_field_info),
    RK_SUBS(rk_method_info, "output", output, num_output, LIST, rk_record_field_info),
    RK_SUBS(rk_method_info, "option", options, num_options, LIST, rk_record_field_info),
    RK_MANY(TEXTS, rk_method_info, "alias", aliases, num_aliases, LIST, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(BOOL, rk_method_info, "plan", needs_plan),
};
static RK_RECORD(record_method_info, rankd__v1__method_info__descriptor, rk_method_info, method_info_fields);

static const struct rk_field list_methods_response_fields[] = {
    RK_SUBS(rk_list_methods_response, "method", methods, num_methods, LIST, record_method_info),
};
RK_RECORD(rk_record_list_methods_response, rankd__v1__list_methods_response__descriptor,
          rk_list_methods_response, list_methods_response_fields);

/* --- Execute. A chunk has no row: only proto/stream.c accepts it. --- */
static struct rk_status *check_execute_header(const void *value)
{
    const struct rk_execute_header *header = value;

    return rk_meta_check(&header->options);
}

static const struct rk_field execute_header_fields[] = {
    RK_SUB(rk_execute_header, "fence", fence, rk_record_fence),
    RK_ONE(BYTES, rk_execute_header, "request_id", request_id, .max_bytes = ID_BYTES),
    RK_ONE(U64, rk_execute_header, "seq", seq),
    RK_ONE(U64, rk_execute_header, "mesh_generation", mesh_generation),
    RK_ONE(TEXT, rk_execute_header, "role", role, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_execute_header, "method", method, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_SUB(rk_execute_header, "input", input, rk_record_batch_spec),
    RK_SUBS(rk_execute_header, "option", options.entries, options.count, META, rk_record_meta_entry),
    RK_SUB(rk_execute_header, "plan", plan, rk_record_plan),
    RK_ONE(U32, rk_execute_header, "timeout_ms", timeout_ms),
    RK_ONE(BOOL, rk_execute_header, "two_phase", two_phase),
    RK_ONE(BOOL, rk_execute_header, "collect", collect),
    RK_MANY(TEXTS, rk_execute_header, "want", want, num_want, LIST, .max_bytes = RK_LIMIT_NAME_BYTES,
            .max_entries = RK_LIMIT_TENSORS),
    RK_ONE(BOOL, rk_execute_header, "brief", brief),
};
static RK_RECORD(record_execute_header, rankd__v1__execute_header__descriptor, rk_execute_header,
                 execute_header_fields, .check = check_execute_header);

/* A message whose only member is stored in the struct of the enclosing message. */
struct cancel_execute {
    const char *reason;
};

static const struct rk_record record_commit = {.descriptor = &rankd__v1__commit__descriptor};

static const struct rk_field cancel_execute_fields[] = {
    RK_ONE(TEXT, cancel_execute, "reason", reason, .max_bytes = RK_LIMIT_DOC_BYTES),
};
static RK_RECORD(record_cancel_execute, rankd__v1__cancel_execute__descriptor, cancel_execute,
                 cancel_execute_fields);

static const struct rk_field execute_request_fields[] = {
    RK_SUB(rk_execute_request, "header", header, record_execute_header, .selected_kind = RK_EXECUTE_HEADER),
    RK_SUB(rk_execute_request, "commit", kind, record_commit, .selected_kind = RK_EXECUTE_COMMIT),
    RK_SUB(rk_execute_request, "cancel", cancel_reason, record_cancel_execute,
           .selected_kind = RK_EXECUTE_CANCEL),
};
RK_RECORD(rk_record_execute_request, rankd__v1__execute_request__descriptor, rk_execute_request,
          execute_request_fields, .has_kind = true, .kind_offset = offsetof(struct rk_execute_request, kind));

static const struct rk_field accepted_fields[] = {
    RK_ONE(U64, rk_accepted, "seq", seq),
    RK_ONE(BOOL, rk_accepted, "replayed", is_replayed),
    RK_ONE(BYTES, rk_accepted, "plan_hash", plan_hash, .max_bytes = DIGEST_BYTES),
};
static RK_RECORD(record_accepted, rankd__v1__accepted__descriptor, rk_accepted, accepted_fields);

static const struct rk_field execute_result_fields[] = {
    RK_SUB(rk_execute_result, "output", output, rk_record_batch_spec),
    RK_SUBS(rk_execute_result, "metric", metrics, num_metrics, METRICS, rk_record_metric),
    RK_ONE(U64, rk_execute_result, "device_ns", device_ns),
    RK_ONE(U64, rk_execute_result, "peak_device_bytes", peak_device_bytes),
    RK_ONE(TEXT, rk_execute_result, "state", state, .max_bytes = RK_LIMIT_NAME_BYTES),
};
static RK_RECORD(record_execute_result, rankd__v1__execute_result__descriptor, rk_execute_result,
                 execute_result_fields);

static const struct rk_field execute_response_fields[] = {
    RK_SUB(rk_execute_response, "accepted", accepted, record_accepted, .selected_kind = RK_RESPONSE_ACCEPTED),
    RK_SUB(rk_execute_response, "progress", progress, rk_record_progress,
           .selected_kind = RK_RESPONSE_PROGRESS),
    RK_SUB(rk_execute_response, "result", result, record_execute_result, .selected_kind = RK_RESPONSE_RESULT),
};
RK_RECORD(rk_record_execute_response, rankd__v1__execute_response__descriptor, rk_execute_response,
          execute_response_fields, .has_kind = true,
          .kind_offset = offsetof(struct rk_execute_response, kind));

/* --- Cancel --- */
static const struct rk_field cancel_request_fields[] = {
    RK_SUB(rk_cancel_request, "fence", fence, rk_record_fence),
    RK_ONE(BYTES, rk_cancel_request, "request_id", request_id, .max_bytes = ID_BYTES),
    RK_ONE(BOOL, rk_cancel_request, "abort_comm", abort_comm),
    RK_ONE(TEXT, rk_cancel_request, "reason", reason, .max_bytes = RK_LIMIT_DOC_BYTES),
};
RK_RECORD(rk_record_cancel_request, rankd__v1__cancel_request__descriptor, rk_cancel_request,
          cancel_request_fields);

static const struct rk_field cancel_response_fields[] = {
    RK_ONE(TEXT, rk_cancel_response, "outcome", outcome, .max_bytes = RK_LIMIT_NAME_BYTES),
};
RK_RECORD(rk_record_cancel_response, rankd__v1__cancel_response__descriptor, rk_cancel_response,
          cancel_response_fields);
