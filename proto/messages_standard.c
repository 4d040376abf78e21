/* Tables of the standard services: health and reflection. */
#include "proto/record_internal.h"

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1/reflection.pb-c.h"
#include "proto/limits.h"

static const struct rk_field health_check_request_fields[] = {
    RK_ONE(TEXT, rk_health_check_request, "service", service, .max_bytes = RK_LIMIT_NAME_BYTES),
};
RK_RECORD(rk_record_health_check_request, grpc__health__v1__health_check_request__descriptor,
          rk_health_check_request, health_check_request_fields);

static const struct rk_field health_check_response_fields[] = {
    RK_ONE(ENUM, rk_health_check_response, "status", status),
};
RK_RECORD(rk_record_health_check_response, grpc__health__v1__health_check_response__descriptor,
          rk_health_check_response, health_check_response_fields);

static const struct rk_field extension_request_fields[] = {
    RK_ONE(TEXT, rk_extension_request, "containing_type", containing_type),
    RK_ONE(I32, rk_extension_request, "extension_number", extension_number),
};
static RK_RECORD(record_extension_request, grpc__reflection__v1__extension_request__descriptor,
                 rk_extension_request, extension_request_fields);

static const struct rk_field reflection_request_fields[] = {
    RK_ONE(TEXT, rk_reflection_request, "host", host),
    RK_ONE(TEXT, rk_reflection_request, "file_by_filename", name, .selected_kind = RK_REFLECTION_FILE),
    RK_ONE(TEXT, rk_reflection_request, "file_containing_symbol", name,
           .selected_kind = RK_REFLECTION_SYMBOL),
    RK_SUB(rk_reflection_request, "file_containing_extension", extension, record_extension_request,
           .selected_kind = RK_REFLECTION_EXTENSION),
    RK_ONE(TEXT, rk_reflection_request, "all_extension_numbers_of_type", name,
           .selected_kind = RK_REFLECTION_EXTENSION_NUMBERS),
    RK_ONE(TEXT, rk_reflection_request, "list_services", name, .selected_kind = RK_REFLECTION_SERVICES),
};
RK_RECORD(rk_record_reflection_request, grpc__reflection__v1__server_reflection_request__descriptor,
          rk_reflection_request, reflection_request_fields, .has_kind = true,
          .kind_offset = offsetof(struct rk_reflection_request, kind));
