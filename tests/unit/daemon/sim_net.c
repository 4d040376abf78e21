/* Calls of the daemon (daemon/rpc/rpc.h) over the simulated network. Messages of one stream keep their
 * order, as on a connection; streams and small calls are reordered. Each side detects a broken link
 * independently, within the time of a keepalive. */
#include <string.h>

#include <grpc/byte_buffer.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "daemon/rpc/execute.h"
#include "proto/rk_stream.h"
#include "tests/unit/daemon/sim.h"

#define MESSAGES_MAX 16

/* The daemon's side of a call. Events refer to it, so it is freed when the last one has run. */
struct rk_call {
    struct sim_daemon *host;
    struct rk_call *next;
    const struct rk_rpc_handler *handler;
    struct sim_stream *stream; /* the driver's side; NULL: closed */
    struct rk_arena *arena;
    void *user;
    struct grpc_byte_buffer *incoming[MESSAGES_MAX]; /* not read yet */
    int num_incoming, num_events;
    bool is_half_closed, is_reading, is_sending, is_finished, is_closed, has_ended;
    struct rk_status *status; /* of the end, while it waits for pending sends */
};

/* The driver's side. Owned by the driver, which closes it; freed when no event is left. */
struct sim_stream {
    int32_t rank;
    struct rk_call *call; /* NULL: not created yet, or freed */
    struct rk_str header; /* packed */
    struct sim_stream_hooks hooks;
    uint64_t generation; /* of the daemon process that it reached */
    int64_t last_ns;     /* arrival time of the newest message to the daemon */
    int64_t back_ns;     /* and of that to the driver */
    int num_events;
    uint64_t tag;
    bool is_cut, is_closed, has_end, is_copy; /* is_copy: an unrequested repetition */
    bool commits;                             /* a copy that includes the Commit */
    int64_t num_tensors;                      /* of the body */
    uint64_t tensor_bytes[SIM_TENSORS];
};

/* A message in flight. */
struct parcel {
    struct sim_stream *stream;
    struct rk_call *call;
    rk_execute_request_kind_t kind;
    struct rk_str packed;
    struct rk_status *status; /* of the end, to the driver */
    bool is_end;
};

static void free_stream(struct sim_stream *stream)
{
    if (!stream->is_closed || stream->num_events > 0 || stream->call)
        return;
    rk_str_fini(&stream->header);
    rk_free(stream);
}

/* --- the daemon's side (daemon/rpc/rpc.h) --- */

struct rk_daemon *rk_call_daemon(const struct rk_call *call)
{
    return &call->host->daemon;
}

struct rk_arena *rk_call_arena(struct rk_call *call)
{
    return call->arena;
}

void rk_call_set_user(struct rk_call *call, void *user)
{
    call->user = user;
}

void *rk_call_user(const struct rk_call *call)
{
    return call->user;
}

bool rk_call_is_finished(const struct rk_call *call)
{
    return call->is_finished || call->is_closed;
}

bool rk_call_is_sending(const struct rk_call *call)
{
    return call->is_sending;
}

/* When no more events can arrive: calls the handler a last time, then frees the memory. */
static void settle(struct rk_call *call)
{
    struct rk_call **link = &call->host->calls;

    if (!call->is_closed || call->num_events > 0)
        return;
    if (!call->has_ended) {
        call->has_ended = true;
        if (call->handler->on_end)
            call->handler->on_end(call);
    }
    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    if (call->stream) {
        call->stream->call = NULL;
        free_stream(call->stream);
    }
    for (int i = 0; i < call->num_incoming; i++)
        grpc_byte_buffer_destroy(call->incoming[i]);
    rk_status_free(call->status);
    rk_arena_destroy(call->arena);
    rk_free(call);
}

static void read_one(void *user)
{
    struct rk_call *call = user;
    struct grpc_byte_buffer *message = NULL;

    call->num_events--;
    if (rk_call_is_finished(call) || !call->is_reading ||
        (call->num_incoming == 0 && !call->is_half_closed)) {
        settle(call);
        return;
    }
    call->is_reading = false;
    if (call->num_incoming > 0) {
        message = call->incoming[0];
        memmove(&call->incoming[0], &call->incoming[1],
                (size_t)(--call->num_incoming) * sizeof(call->incoming[0]));
    }
    if (message && call->handler->consume && call->handler->consume(call, message))
        rk_call_read(call);
    else
        call->handler->on_message(call, message);
    grpc_byte_buffer_destroy(message);
    settle(call);
}

static void wake_reader(struct rk_call *call)
{
    call->num_events++;
    sim_at(0, read_one, call);
}

void rk_call_read(struct rk_call *call)
{
    if (rk_call_is_finished(call))
        return;
    RK_ASSERT(!call->is_reading);
    call->is_reading = true;
    wake_reader(call);
}

/* --- to the driver --- */

static void take_response(struct sim_stream *stream, const struct rk_str *packed)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_execute_response response;
    struct rk_status *st = rk_unpack_execute_response(&response, arena, packed->text, packed->bytes);

    RK_ASSERT(!st);
    if (response.kind == RK_RESPONSE_ACCEPTED)
        stream->hooks.on_accepted(stream->hooks.user, stream->rank, response.accepted.is_replayed);
    else if (response.kind == RK_RESPONSE_RESULT && response.result.num_metrics > 0)
        stream->tag = (uint64_t)response.result.metrics[0].value;
    rk_arena_destroy(arena);
}

static void end_stream(struct sim_stream *stream, rk_code_t code, const char *reason)
{
    if (stream->has_end || stream->is_closed)
        return;
    stream->has_end = true;
    stream->hooks.on_end(stream->hooks.user, stream->rank, code, reason, stream->tag);
}

static void arrive_at_driver(void *user)
{
    struct parcel *parcel = user;
    struct sim_stream *stream = parcel->stream;

    if (!stream->is_closed && !stream->has_end && !stream->is_cut) {
        if (parcel->is_end)
            end_stream(stream, rk_status_code(parcel->status), rk_status_reason(parcel->status));
        else
            take_response(stream, &parcel->packed);
    }
    stream->num_events--;
    free_stream(stream);
    rk_status_free(parcel->status);
    rk_str_fini(&parcel->packed);
    rk_free(parcel);
}

/* After all messages in flight. */
static void post_to_driver(struct rk_call *call, struct parcel *parcel)
{
    struct sim_stream *stream = call->stream;
    int64_t arrives_ns = sim->world.now_ns + sim_delay_ns();

    stream->back_ns = RK_MAX(stream->back_ns, arrives_ns);
    stream->num_events++;
    parcel->stream = stream;
    sim_at(stream->back_ns - sim->world.now_ns, arrive_at_driver, parcel);
}

static void on_sent(void *user)
{
    struct rk_call *call = user;

    call->num_events--;
    call->is_sending = false;
    if (!rk_call_is_finished(call))
        call->handler->on_sent(call);
    settle(call);
}

void rk_call_send(struct rk_call *call, struct grpc_byte_buffer *message)
{
    RK_ASSERT(!call->is_sending);
    if (!rk_call_is_finished(call)) {
        if (call->stream && !call->stream->is_copy) {
            struct parcel *parcel = rk_calloc(1, sizeof(*parcel));
            struct rk_bytes bytes;
            struct rk_status *st = rk_stream_flatten(&bytes, call->arena, message, RK_LIMIT_MESSAGE_BYTES);

            RK_ASSERT(!st);
            rk_str_append_bytes(&parcel->packed, (const char *)bytes.data, bytes.bytes);
            post_to_driver(call, parcel);
        }
        call->is_sending = true;
        call->num_events++;
        sim_at(1000, on_sent, call);
    }
    grpc_byte_buffer_destroy(message);
}

static void on_closed(void *user)
{
    struct rk_call *call = user;

    call->num_events--;
    call->is_closed = true;
    settle(call);
}

/* Notifies the daemon later that the call is over. */
static void close_later(struct rk_call *call, int64_t delay_ns)
{
    call->num_events++;
    sim_at(delay_ns, on_closed, call);
}

void rk_call_finish(struct rk_call *call, struct rk_status *st)
{
    if (rk_call_is_finished(call)) {
        rk_status_free(st);
        return;
    }
    call->is_finished = true;
    if (call->stream && !call->stream->is_copy) {
        struct parcel *parcel = rk_calloc(1, sizeof(*parcel));

        parcel->is_end = true;
        parcel->status = st;
        post_to_driver(call, parcel);
    } else {
        rk_status_free(st);
    }
    close_later(call, 1000);
}

void rk_call_finish_logged(struct rk_call *call, struct rk_status *st)
{
    rk_call_finish(call, st);
}

void rk_call_send_last(struct rk_call *call, struct grpc_byte_buffer *message)
{
    rk_call_send(call, message);
    rk_call_finish(call, NULL);
}

void rk_call_defer(struct rk_call *call)
{
    RK_ASSERT(!call); /* Configure is not simulated */
}

void rk_call_answer(struct rk_call *call, struct rk_status *st, const struct rk_str *reply)
{
    (void)reply;
    RK_ASSERT(!call);
    rk_status_free(st);
}

void rk_loop_run_here(struct rk_loop *loop, struct rk_loop_event *event)
{
    (void)loop;
    event->run(event); /* of the last byte: the read that brought it is over but for its return */
}

static struct rk_call *call_create(struct sim_daemon *host, const struct rk_rpc_handler *handler,
                                   struct sim_stream *stream)
{
    struct rk_call *call = rk_calloc(1, sizeof(*call));

    call->host = host;
    call->handler = handler;
    call->stream = stream;
    call->arena = rk_arena_create(4096, 0);
    call->next = host->calls;
    host->calls = call;
    return call;
}

/* --- streams --- */

static void notice_cut(void *user)
{
    struct sim_stream *stream = user;

    end_stream(stream, RK_UNAVAILABLE, "");
    stream->num_events--;
    free_stream(stream);
}

/* No more messages arrive; each side detects it at its own time. */
static void cut(struct sim_stream *stream, int64_t daemon_ns, int64_t driver_ns)
{
    if (stream->is_cut)
        return;
    stream->is_cut = true;
    sim->num_cut++;
    if (stream->call && !stream->call->is_closed)
        close_later(stream->call, daemon_ns);
    stream->num_events++;
    sim_at(driver_ns, notice_cut, stream);
}

void sim_net_cut_daemon(struct sim_daemon *host);

void sim_net_cut_daemon(struct sim_daemon *host)
{
    struct rk_call *next;

    for (struct rk_call *call = host->calls; call; call = next) {
        next = call->next;
        if (call->stream && !call->stream->is_copy)
            cut(call->stream, 0, sim_between_ns(1, 8000));
        /* The process has crashed: its memory is freed now, and its pending events do nothing. */
        call->is_closed = true;
        if (!call->has_ended) {
            call->has_ended = true;
            if (call->handler->on_end)
                call->handler->on_end(call);
        }
        settle(call);
    }
}

static void open_at_daemon(struct sim_stream *stream)
{
    struct sim_daemon *host = &sim->daemons[stream->rank];

    stream->generation = host->generation;
    stream->call = call_create(host, &rk_rpc_execute, stream);
    rk_call_read(stream->call);
}

static void deliver(struct sim_stream *stream, struct parcel *parcel)
{
    struct sim_daemon *host = &sim->daemons[stream->rank];

    if (!host->is_up) {
        cut(stream, 0, SIM_MS(1));
        return;
    }
    if (parcel->kind == RK_EXECUTE_HEADER)
        open_at_daemon(stream);
    if (!stream->call || stream->generation != host->generation || stream->call->is_closed)
        return;
    if (parcel->is_end)
        stream->call->is_half_closed = true;
    else
        stream->call->incoming[stream->call->num_incoming++] = rk_stream_encode(&parcel->packed);
    RK_ASSERT(stream->call->num_incoming < MESSAGES_MAX);
    wake_reader(stream->call);
    if (parcel->kind == RK_EXECUTE_HEADER && stream->is_copy && stream->commits)
        sim_stream_commit(stream); /* after the body, which is in flight */
}

static void arrive_at_daemon(void *user)
{
    struct parcel *parcel = user;
    struct sim_stream *stream = parcel->stream;

    if (!stream->is_cut)
        deliver(stream, parcel);
    stream->num_events--;
    if (stream->is_copy &&
        (parcel->kind == RK_EXECUTE_COMMIT || parcel->is_end || stream->is_cut || !stream->call))
        sim_stream_close(stream);
    else
        free_stream(stream);
    rk_str_fini(&parcel->packed);
    rk_free(parcel);
}

static void post_to_daemon(struct sim_stream *stream, rk_execute_request_kind_t kind,
                           const struct rk_str *packed)
{
    struct parcel *parcel = rk_calloc(1, sizeof(*parcel));
    int64_t arrives_ns = sim->world.now_ns + sim_delay_ns();

    stream->last_ns = RK_MAX(stream->last_ns, arrives_ns);
    stream->num_events++;
    parcel->stream = stream;
    parcel->kind = kind;
    rk_str_append_bytes(&parcel->packed, packed->text, packed->bytes);
    if (sim_chance(0.03))
        cut(stream, sim_between_ns(1, 8000), sim_between_ns(1, 8000));
    sim_at(stream->last_ns - sim->world.now_ns, arrive_at_daemon, parcel);
}

static void release_nothing(void *user)
{
    (void)user;
}

/* Every tensor in two chunks, of zeros. */
static void post_body(struct sim_stream *stream)
{
    static const char zeros[SIM_TENSOR_BYTES];

    for (int64_t i = 0; i < stream->num_tensors; i++) {
        size_t half = (size_t)stream->tensor_bytes[i] / 2;

        for (int part = 0; part < 2; part++) {
            struct rk_tensor_chunk chunk = {.tensor = (uint32_t)i, .offset = (uint64_t)part * half};
            size_t bytes = part == 0 ? half : (size_t)stream->tensor_bytes[i] - half;
            struct grpc_byte_buffer *buffer =
                rk_stream_encode_chunk(&chunk, zeros, bytes, release_nothing, NULL);
            struct rk_arena *arena = rk_arena_create(4096, 0);
            struct rk_str packed = {0};
            struct rk_bytes flat;
            struct rk_status *st = rk_stream_flatten(&flat, arena, buffer, RK_LIMIT_MESSAGE_BYTES);

            RK_ASSERT(!st);
            rk_str_append_bytes(&packed, (const char *)flat.data, flat.bytes);
            post_to_daemon(stream, RK_EXECUTE_NONE, &packed);
            rk_str_fini(&packed);
            rk_arena_destroy(arena);
            grpc_byte_buffer_destroy(buffer);
        }
    }
}

static void ignore_accepted(void *user, int32_t rank, bool is_replayed)
{
    (void)user;
    (void)rank;
    (void)is_replayed;
}

static void ignore_end(void *user, int32_t rank, rk_code_t code, const char *reason, uint64_t tag)
{
    (void)user;
    (void)rank;
    (void)code;
    (void)reason;
    (void)tag;
}

static struct sim_stream *stream_create(int32_t rank, const struct sim_stream_hooks *hooks)
{
    struct sim_stream *stream = rk_calloc(1, sizeof(*stream));

    stream->rank = rank;
    stream->hooks = *hooks;
    return stream;
}

static void begin_copy(void *user)
{
    struct sim_stream *copy = user;

    copy->num_events--;
    post_to_daemon(copy, RK_EXECUTE_HEADER, &copy->header);
    post_body(copy);
    if (!copy->commits) { /* it is idle for a while, and is then closed */
        struct parcel *parcel = rk_calloc(1, sizeof(*parcel));

        copy->num_events++;
        parcel->stream = copy;
        parcel->is_end = true;
        sim_at(copy->last_ns - sim->world.now_ns + sim_between_ns(1, 5000), arrive_at_daemon, parcel);
    }
}

/* Repeats the stream at a random later time, like a proxy, or a driver that was believed dead. */
static void maybe_copy(const struct sim_stream *stream)
{
    static const struct sim_stream_hooks nobody = {.on_accepted = ignore_accepted, .on_end = ignore_end};
    struct sim_stream *copy;

    if (!sim_chance(0.1))
        return;
    sim->num_repeated++;
    copy = stream_create(stream->rank, &nobody);
    rk_str_append_bytes(&copy->header, stream->header.text, stream->header.bytes);
    copy->num_tensors = stream->num_tensors;
    memcpy(copy->tensor_bytes, stream->tensor_bytes, sizeof(copy->tensor_bytes));
    copy->is_copy = true;
    copy->commits = sim_chance(0.7);
    copy->num_events++;
    sim_at(sim_between_ns(0, 30000), begin_copy, copy);
}

struct sim_stream *sim_stream_open(int32_t rank, const struct rk_execute_header *header,
                                   const struct sim_stream_hooks *hooks)
{
    struct sim_stream *stream = stream_create(rank, hooks);
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER, .header = *header};

    rk_pack_execute_request(&stream->header, &request);
    RK_ASSERT(header->input.num_tensors <= SIM_TENSORS);
    stream->num_tensors = header->input.num_tensors;
    for (int64_t i = 0; i < stream->num_tensors; i++)
        stream->tensor_bytes[i] = header->input.tensors[i].byte_size;
    post_to_daemon(stream, RK_EXECUTE_HEADER, &stream->header);
    post_body(stream);
    maybe_copy(stream);
    return stream;
}

void sim_stream_commit(struct sim_stream *stream)
{
    struct rk_execute_request request = {.kind = RK_EXECUTE_COMMIT};
    struct rk_str packed = {0};

    rk_pack_execute_request(&packed, &request);
    post_to_daemon(stream, RK_EXECUTE_COMMIT, &packed);
    rk_str_fini(&packed);
}

void sim_stream_close(struct sim_stream *stream)
{
    if (!stream)
        return;
    if (stream->call && !stream->call->is_closed && !stream->is_cut)
        close_later(stream->call, sim_delay_ns());
    stream->is_cut = true;
    stream->is_closed = true;
    free_stream(stream);
}

/* --- small calls --- */

struct small {
    int32_t rank;
    const struct rk_rpc_handler *handler;
    struct rk_str request, reply;
    sim_reply_t on_reply; /* NULL: a repetition */
    void *user;
    struct rk_status *status;
};

static struct rk_bytes bytes_of(const struct rk_str *str)
{
    return (struct rk_bytes){.data = (const uint8_t *)rk_str_text(str), .bytes = str->bytes};
}

static void free_small(struct small *small)
{
    rk_str_fini(&small->request);
    rk_str_fini(&small->reply);
    rk_status_free(small->status);
    rk_free(small);
}

static void answer(void *user)
{
    struct small *small = user;

    if (small->on_reply)
        small->on_reply(small->user, small->rank, rk_status_code(small->status),
                        rk_status_reason(small->status), bytes_of(&small->reply));
    free_small(small);
}

static void run_small(void *user)
{
    struct small *small = user;
    struct sim_daemon *host = &sim->daemons[small->rank];
    struct rk_call *call;

    if (!host->is_up) {
        small->status = RK_FAIL(RK_UNAVAILABLE, "down");
    } else {
        call = call_create(host, small->handler, NULL);
        small->status = small->handler->unary(call, bytes_of(&small->request), &small->reply);
        call->is_closed = call->has_ended = true;
        settle(call);
    }
    sim_at(sim_delay_ns(), answer, small);
}

static void lose(void *user)
{
    struct small *small = user;

    rk_status_free(small->status);
    small->status = RK_FAIL(RK_UNAVAILABLE, "lost");
    answer(small);
}

static struct small *copy_small(const struct small *small)
{
    struct small *copy = rk_calloc(1, sizeof(*copy));

    copy->rank = small->rank;
    copy->handler = small->handler;
    rk_str_append_bytes(&copy->request, small->request.text, small->request.bytes);
    return copy;
}

void sim_unary(int32_t rank, const struct rk_rpc_handler *handler, const struct rk_str *request,
               sim_reply_t on_reply, void *user)
{
    struct small *small = rk_calloc(1, sizeof(*small));

    *small = (struct small){.rank = rank, .handler = handler, .on_reply = on_reply, .user = user};
    rk_str_append_bytes(&small->request, request->text, request->bytes);
    if (sim_chance(0.05)) /* repeated later */
        sim_at(sim_between_ns(0, 20000), run_small, copy_small(small));
    if (sim_chance(0.05)) { /* the reply is lost, and the request possibly not */
        if (sim_chance(0.5))
            sim_at(sim_delay_ns(), run_small, copy_small(small));
        sim_at(sim_between_ns(1, 8000), lose, small);
    } else {
        sim_at(sim_delay_ns(), run_small, small);
    }
}
