/* Records of TensorBoard's event files: TFRecord frames around Event messages of
 * tensorflow/core/util/event.proto. Few fields are needed, so the messages are written field by field, in the
 * order of their numbers as protobuf's own writers do it. */
#include "rl/rk_loggers.h"

#include <math.h>
#include <string.h>

#include "base/rk_crc32c.h"
#include "proto/rk_wire.h"

#define FILE_VERSION "brain.Event:2"

/* Field numbers of event.proto, summary.proto, tensor.proto and tensor_shape.proto. */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7,
    SESSION_LOG_STATUS = 1,
    SUMMARY_VALUE = 1,
    VALUE_TAG = 1,
    VALUE_SIMPLE_VALUE = 2,
    VALUE_TENSOR = 8,
    VALUE_METADATA = 9,
    METADATA_PLUGIN_DATA = 1,
    PLUGIN_NAME = 1,
    TENSOR_DTYPE = 1,
    TENSOR_SHAPE = 2,
    TENSOR_STRING_VAL = 8,
    SHAPE_DIM = 2,
    DIM_SIZE = 1,
};

enum { SESSION_START = 1, DT_STRING = 7 };

/* An event up to the field that selects its kind; protobuf omits a step of 0. */
static struct rk_str begin_event(double wall_time, int64_t step)
{
    struct rk_str event = {0};
    uint64_t bits;

    memcpy(&bits, &wall_time, sizeof(bits));
    rk_wire_put_key(&event, EVENT_WALL_TIME, RK_WIRE_FIXED64);
    rk_wire_put_fixed(&event, bits, 8);
    if (step != 0)
        rk_wire_put_number(&event, EVENT_STEP, (uint64_t)step);
    return event;
}

static uint32_t masked_crc(const char *data, size_t bytes)
{
    uint32_t crc = rk_crc32c(0, data, bytes);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Appends the record and releases the event. */
static void put_record(struct rk_str *out, struct rk_str *event)
{
    struct rk_str length = {0};

    rk_wire_put_fixed(&length, event->bytes, 8);
    rk_str_append_bytes(out, length.text, length.bytes);
    rk_wire_put_fixed(out, masked_crc(length.text, length.bytes), 4);
    rk_str_append_bytes(out, event->text, event->bytes);
    rk_wire_put_fixed(out, masked_crc(event->text, event->bytes), 4);
    rk_str_fini(&length);
    rk_str_fini(event);
}

void rk_tb_version(struct rk_str *out, double wall_time)
{
    struct rk_str event = begin_event(wall_time, 0);

    rk_wire_put_text(&event, EVENT_FILE_VERSION, FILE_VERSION);
    put_record(out, &event);
}

void rk_tb_session_start(struct rk_str *out, double wall_time, int64_t step)
{
    struct rk_str event = begin_event(wall_time, step), session = {0};

    rk_wire_put_number(&session, SESSION_LOG_STATUS, SESSION_START);
    rk_wire_put_message(&event, EVENT_SESSION_LOG, &session);
    put_record(out, &event);
}

static void put_scalar(struct rk_str *summary, const char *tag, double number)
{
    struct rk_str value = {0};
    float single = (float)number;
    uint32_t bits;

    memcpy(&bits, &single, sizeof(bits));
    rk_wire_put_text(&value, VALUE_TAG, tag);
    rk_wire_put_key(&value, VALUE_SIMPLE_VALUE, RK_WIRE_FIXED32);
    rk_wire_put_fixed(&value, bits, 4);
    rk_wire_put_message(summary, SUMMARY_VALUE, &value);
}

void rk_tb_scalars(struct rk_str *out, double wall_time, int64_t step, const struct rk_json *values)
{
    struct rk_str event = begin_event(wall_time, step), summary = {0};

    for (void *it = rk_json_iter(values); it; it = rk_json_iter_next(values, it)) {
        double number = rk_json_as_real(rk_json_iter_value(it), NAN);

        if (isfinite(number))
            put_scalar(&summary, rk_json_iter_key(it), number);
    }
    rk_wire_put_message(&event, EVENT_SUMMARY, &summary);
    put_record(out, &event);
}

/* A tensor of the shape [1] with one string. */
static void put_string_tensor(struct rk_str *value, const char *text)
{
    struct rk_str tensor = {0}, shape = {0}, dim = {0};

    rk_wire_put_number(&dim, DIM_SIZE, 1);
    rk_wire_put_message(&shape, SHAPE_DIM, &dim);
    rk_wire_put_number(&tensor, TENSOR_DTYPE, DT_STRING);
    rk_wire_put_message(&tensor, TENSOR_SHAPE, &shape);
    rk_wire_put_text(&tensor, TENSOR_STRING_VAL, text);
    rk_wire_put_message(value, VALUE_TENSOR, &tensor);
}

void rk_tb_text(struct rk_str *out, double wall_time, int64_t step, const char *tag, const char *text)
{
    struct rk_str event = begin_event(wall_time, step), summary = {0}, value = {0}, metadata = {0},
                  plugin = {0};

    rk_wire_put_text(&value, VALUE_TAG, tag);
    put_string_tensor(&value, text);
    rk_wire_put_text(&plugin, PLUGIN_NAME, "text");
    rk_wire_put_message(&metadata, METADATA_PLUGIN_DATA, &plugin);
    rk_wire_put_message(&value, VALUE_METADATA, &metadata);
    rk_wire_put_message(&summary, SUMMARY_VALUE, &value);
    rk_wire_put_message(&event, EVENT_SUMMARY, &summary);
    put_record(out, &event);
}
