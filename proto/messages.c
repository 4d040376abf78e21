/* The tables of messages.def, and the public functions of rk_messages.h, a pair per message. */
#include "proto/rk_messages.h"

#include <inttypes.h>
#include <stddef.h>

#include "proto/limits.h"
#include "proto/record_internal.h"

/* Longest texts and bytes. */
enum {
    ANY = 0, /* the message's size */
    NAME = RK_LIMIT_NAME_BYTES,
    DOC = RK_LIMIT_DOC_BYTES,
    ID = 16,     /* lease_id, request_id, driver_key */
    DIGEST = 32, /* SHA-256 */
    COMM_ID = 4096
};

/* --- checks beyond the types --- */

static struct rk_status *check_tensor_spec(const void *value)
{
    const struct rk_tensor_spec *spec = value;

    if (!rk_dtype_is_valid((int)spec->dtype))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "tensor '%s': no dtype", spec->name);
    return NULL;
}

static struct rk_status *check_batch_spec(const void *value)
{
    const struct rk_batch_spec *spec = value;

    if (spec->batch_size < 0)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "batch_size=%" PRId64 " is negative",
                              spec->batch_size);
    return NULL;
}

/* --- tables --- */

#define RK_MESSAGE(tag, name) TABLE(tag, rk_##tag, name)
#define TABLE(tag, type, name_)                   \
    const struct rk_record *rk_record_##tag(void) \
    {                                             \
        typedef struct type self;                 \
        static const char name[] = name_;         \
        static const struct rk_field fields[] = {
#define RK_DECLARE(declaration)
#define RK_ROW(number_, kind_, name_, member, ...) \
    {.number = (number_),                          \
     .kind = RK_FIELD_##kind_,                     \
     .name = (name_),                              \
     .offset = offsetof(self, member),             \
     __VA_ARGS__},
#define RK_END(check_)                                                          \
    }                                                                           \
    ;                                                                           \
    static const struct rk_record record = {.name = name,                       \
                                            .struct_bytes = sizeof(self),       \
                                            .fields = fields,                   \
                                            .num_fields = RK_ARRAY_LEN(fields), \
                                            .check = (check_)};                 \
    return &record;                                                             \
    }

/* The mesh, whose struct is one of base/. */
TABLE(mesh_spec, rk_mesh_spec, "rankd.v1.Mesh")
RK_ROW(1, INDEX, "tp", tp, )
RK_ROW(2, INDEX, "cp", cp, )
RK_ROW(3, INDEX, "ep", ep, )
RK_ROW(4, INDEX, "etp", etp, )
RK_ROW(5, INDEX, "dp", dp, )
RK_ROW(6, INDEX, "pp", pp, )
RK_ROW(7, CHARS, "order", order, .max = sizeof(((self *)0)->order) - 1)
RK_LIST(8, INDEX, "ranks", num_ranks, ranks, RANKS, RK_MESH_MAX_RANKS, )
RK_END(NULL)

#include "proto/messages.def"

const struct rk_record *rk_record_empty(void)
{
    static const struct rk_record record = {.name = "a message without fields"};

    return &record;
}

/* --- a pair of functions per message --- */

#define X(name)                                                                                         \
    void rk_pack_##name(struct rk_str *out, const struct rk_##name *msg)                                \
    {                                                                                                   \
        rk_record_pack(out, rk_record_##name(), msg);                                                   \
    }                                                                                                   \
    struct rk_status *rk_unpack_##name(struct rk_##name *out, struct rk_arena *arena, const void *data, \
                                       size_t bytes)                                                    \
    {                                                                                                   \
        return rk_record_unpack(out, rk_record_##name(), arena, data, bytes);                           \
    }
RK_MESSAGE_TABLE(X)
#undef X

void rk_pack_plan(struct rk_str *out, const struct rk_plan *plan)
{
    rk_record_pack(out, rk_record_plan(), plan);
}
