/* The standard reflection service, v1 and v1alpha: their messages are the same, so one handler serves both.
 * A name that is not found is reported inside the response, and the stream continues. */
#include <string.h>

#include "base/rk_assert.h"
#include "daemon/daemon_internal.h"
#include "daemon/rpc/descriptors_internal.h"
#include "proto/rk_wire.h"

#define MAX_REQUEST_BYTES (16 << 10) /* the response repeats it */

/* Field numbers of ServerReflectionResponse and of its members. */
enum {
    VALID_HOST = 1,
    ORIGINAL_REQUEST = 2,
    FILE_DESCRIPTOR_RESPONSE = 4,
    EXTENSION_NUMBERS_RESPONSE = 5,
    LIST_SERVICES_RESPONSE = 6,
    ERROR_RESPONSE = 7
};
enum { FILE_DESCRIPTOR_PROTO = 1, BASE_TYPE_NAME = 1, SERVICE = 1, SERVICE_NAME = 1 };
enum { ERROR_CODE = 1, ERROR_MESSAGE = 2 };

static void put_file(struct rk_str *out, int32_t file)
{
    int32_t files[RK_DESCRIPTOR_FILES_MAX], count = rk_descriptor_list_imports(files, file);
    struct rk_str list = {0};

    for (int32_t i = 0; i < count; i++) {
        struct rk_bytes descriptor = rk_descriptor_get(files[i]);

        rk_wire_put_bytes(&list, FILE_DESCRIPTOR_PROTO, descriptor.data, descriptor.bytes);
    }
    rk_wire_put_message(out, FILE_DESCRIPTOR_RESPONSE, &list);
}

/* The services of all RPCs: a path is "/SERVICE/METHOD", and the paths of a service are consecutive. */
static void put_services(struct rk_str *out)
{
    struct rk_str list = {0};
    const char *last = "";
    size_t last_bytes = 0;

    for (int id = 0; id < RK_RPC_COUNT; id++) {
        const char *name = rk_rpc_get((rk_rpc_id_t)id)->path + 1;
        size_t bytes = strcspn(name, "/");
        struct rk_str service = {0};

        if (bytes == last_bytes && memcmp(name, last, bytes) == 0)
            continue;
        rk_wire_put_bytes(&service, SERVICE_NAME, name, bytes);
        rk_wire_put_message(&list, SERVICE, &service);
        last = name;
        last_bytes = bytes;
    }
    rk_wire_put_message(out, LIST_SERVICES_RESPONSE, &list);
}

/* No message has extensions: proto3 has none. */
static struct rk_status *put_extension_numbers(struct rk_str *out, const char *type)
{
    struct rk_str numbers = {0};

    if (!rk_descriptor_has_message(type))
        return RK_FAIL(RK_NOT_FOUND, "unknown message type '%s'", type);
    rk_wire_put_text(&numbers, BASE_TYPE_NAME, type);
    rk_wire_put_message(out, EXTENSION_NUMBERS_RESPONSE, &numbers);
    return NULL;
}

static struct rk_status *put_answer(struct rk_str *out, const struct rk_reflection_request *request)
{
    int32_t file;

    switch (request->kind) {
    case RK_REFLECTION_FILE:
        file = rk_descriptor_find_file(request->name);
        if (file == RK_DESCRIPTOR_NONE)
            return RK_FAIL(RK_NOT_FOUND, "unknown file '%s'", request->name);
        put_file(out, file);
        return NULL;
    case RK_REFLECTION_SYMBOL:
        file = rk_descriptor_find_symbol(request->name);
        if (file == RK_DESCRIPTOR_NONE)
            return RK_FAIL(RK_NOT_FOUND, "unknown symbol '%s'", request->name);
        put_file(out, file);
        return NULL;
    case RK_REFLECTION_EXTENSION:
        return RK_FAIL(RK_NOT_FOUND, "unknown extension %d of '%s': no message has extensions",
                       (int)request->extension.extension_number, request->extension.containing_type);
    case RK_REFLECTION_EXTENSION_NUMBERS:
        return put_extension_numbers(out, request->name);
    case RK_REFLECTION_SERVICES:
        put_services(out);
        return NULL;
    default:
        return RK_FAIL(RK_INVALID_ARGUMENT, "message_request: the request has none of its members");
    }
}

static void put_error(struct rk_str *out, const struct rk_status *st)
{
    struct rk_str error = {0};

    rk_wire_put_number(&error, ERROR_CODE, (uint64_t)rk_status_code(st));
    rk_wire_put_text(&error, ERROR_MESSAGE, rk_status_message(st));
    rk_wire_put_message(out, ERROR_RESPONSE, &error);
}

static struct rk_status *reflect(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_reflection_request message;
    struct rk_status *error;

    RK_TRY(rk_unpack_reflection_request(&message, rk_call_arena(call), request.data, request.bytes));
    rk_wire_put_text(reply, VALID_HOST, message.host);
    rk_wire_put_bytes(reply, ORIGINAL_REQUEST, request.data, request.bytes);
    error = put_answer(reply, &message);
    if (error)
        put_error(reply, error);
    rk_status_free(error);
    return NULL;
}

static void on_message(struct rk_call *call, struct grpc_byte_buffer *message)
{
    rk_call_answer_each(call, message, MAX_REQUEST_BYTES, reflect);
}

const struct rk_rpc_handler rk_rpc_reflect = {
    .on_message = on_message, .on_sent = rk_call_read, .is_endless = true};
