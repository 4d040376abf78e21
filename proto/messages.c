/* The public functions of rk_messages.h: one pair per message, all based on the tables. */
#include "proto/rk_messages.h"

#include "proto/record_internal.h"

#define X(name)                                                                                         \
    void rk_pack_##name(struct rk_str *out, const struct rk_##name *msg)                                \
    {                                                                                                   \
        rk_record_pack(out, &rk_record_##name, msg);                                                    \
    }                                                                                                   \
    struct rk_status *rk_unpack_##name(struct rk_##name *out, struct rk_arena *arena, const void *data, \
                                       size_t bytes)                                                    \
    {                                                                                                   \
        return rk_record_unpack(out, &rk_record_##name, arena, data, bytes);                            \
    }
RK_MESSAGE_TABLE(X)
#undef X

void rk_pack_plan(struct rk_str *out, const struct rk_plan *plan)
{
    rk_record_pack(out, &rk_record_plan, plan);
}
