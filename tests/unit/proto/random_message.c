#include "tests/unit/proto/random_message.h"

#include "base/rk_assert.h"
#include "base/rk_compiler.h"
#include "proto/rk_messages.h"

#include <stdio.h>
#include <string.h>

static void *alloc(struct rk_arena *arena, size_t count, size_t bytes)
{
    void *ptr = rk_arena_calloc(arena, count, bytes);

    RK_ASSERT(ptr != NULL);
    return ptr;
}

/* No two texts of a test are equal, so that meta keys are unique. */
static char *random_text(struct rk_rng *rng, struct rk_arena *arena)
{
    static const char *const tails[] = {"", " a b", "\xc3\xa4\xe2\x82\xac", "\xf0\x9f\x98\x80", "\"\\\n"};
    static int serial;
    char text[64];

    snprintf(text, sizeof(text), "t%d%s", serial++, tails[rk_rng_next_below(rng, RK_ARRAY_LEN(tails))]);
    return rk_arena_strdup(arena, text);
}

static uint64_t random_u64(struct rk_rng *rng)
{
    uint64_t bits = (uint64_t)rk_rng_next_u32(rng) << 32 | rk_rng_next_u32(rng);

    return (bits >> rk_rng_next_below(rng, 64)) | 1;
}

static void random_value(const ProtobufCFieldDescriptor *field, void *at, struct rk_rng *rng,
                         struct rk_arena *arena, double density)
{
    const ProtobufCEnumDescriptor *values;

    switch (field->type) {
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = 1;
        break;
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_INT32:
        *(uint32_t *)at = (uint32_t)random_u64(rng) >> 1 | 1; /* sizes and ranks are at most INT32_MAX */
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        *(int64_t *)at = (int64_t)(random_u64(rng) >> 1) | 1;
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        *(uint64_t *)at = random_u64(rng);
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = rk_rng_next_normal(rng) * 1e6;
        break;
    case PROTOBUF_C_TYPE_ENUM:
        values = field->descriptor;
        *(int *)at = values->values[1 + rk_rng_next_below(rng, values->n_values - 1)].value;
        break;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at =
            strcmp(field->name, "json") == 0 ? (char *)"[1,null,{\"a\":2.5}]" : random_text(rng, arena);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at = (ProtobufCBinaryData){.len = 16, .data = alloc(arena, 16, 1)};
        for (int i = 0; i < 16; i++)
            ((ProtobufCBinaryData *)at)->data[i] = (uint8_t)rk_rng_next_u32(rng);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)at = random_message(field->descriptor, rng, arena, density);
        break;
    default:
        RK_ASSERT(!"a type that the schema does not use");
    }
}

static size_t value_bytes(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_ENUM:
    case PROTOBUF_C_TYPE_BOOL:
        return 4;
    default:
        return 8;
    }
}

/* Fields that rankd refuses: bytes in meta, chunks outside of rk_stream. */
static bool is_refused(const ProtobufCFieldDescriptor *field)
{
    return strcmp(field->name, "raw") == 0 || strcmp(field->name, "chunk") == 0;
}

/* Fields without which the message would be refused, or would equal an absent message. */
static bool is_needed(const ProtobufCMessageDescriptor *descriptor, const ProtobufCFieldDescriptor *field)
{
    return field == &descriptor->fields[0] || strcmp(field->name, "dtype") == 0 ||
           strcmp(field->name, "key") == 0 || strcmp(field->name, "value") == 0;
}

ProtobufCMessage *random_message(const ProtobufCMessageDescriptor *descriptor, struct rk_rng *rng,
                                 struct rk_arena *arena, double density)
{
    ProtobufCMessage *message = alloc(arena, 1, descriptor->sizeof_message);
    bool is_oneof = descriptor->n_fields > 1 && (descriptor->fields[0].flags & PROTOBUF_C_FIELD_FLAG_ONEOF);
    unsigned chosen = (unsigned)rk_rng_next_below(rng, RK_MAX(descriptor->n_fields, 1));

    descriptor->message_init(message);
    while (is_oneof && is_refused(&descriptor->fields[chosen]))
        chosen = (unsigned)rk_rng_next_below(rng, descriptor->n_fields);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        char *at = (char *)message + field->offset;
        char *quantifier = (char *)message + field->quantifier_offset;

        if (is_oneof ? i != chosen : rk_rng_next_uniform(rng) > density && !is_needed(descriptor, field))
            continue;
        if (is_oneof)
            memcpy(quantifier, &field->id, sizeof(field->id));
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t count = 1 + (size_t)rk_rng_next_below(rng, 4);
            char *items = alloc(arena, count, 8);

            for (size_t k = 0; k < count; k++)
                random_value(field, items + k * value_bytes(field->type), rng, arena, density);
            memcpy(quantifier, &count, sizeof(count));
            memcpy(at, &items, sizeof(items));
        } else {
            random_value(field, at, rng, arena, density);
        }
    }
    return message;
}
