/* Streams in which each request gets one answer, one after the other. */
#include "daemon/rpc/rpc.h"

#include "base/rk_arena.h"
#include "base/rk_str.h"
#include "proto/rk_stream.h"

static struct rk_status *answer_one(struct rk_call *call, struct grpc_byte_buffer *message, size_t bytes_max,
                                    rk_call_answer_fn *answer)
{
    struct rk_arena *arena = rk_call_arena(call);
    struct rk_str reply = {0};
    struct rk_bytes request;
    struct rk_status *st;

    rk_arena_reset(arena); /* the stream lasts as long as its client wants */
    RK_TRY(rk_stream_flatten(&request, arena, message, bytes_max));
    st = answer(call, request, &reply);
    if (!st)
        rk_call_send(call, rk_stream_encode(&reply));
    rk_str_fini(&reply);
    return st;
}

void rk_call_answer_each(struct rk_call *call, struct grpc_byte_buffer *message, size_t bytes_max,
                         rk_call_answer_fn *answer)
{
    struct rk_status *st = message ? answer_one(call, message, bytes_max, answer) : NULL;

    if (!message || st)
        rk_call_finish(call, st);
}
