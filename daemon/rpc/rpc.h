/* The gRPC server: one completion queue, thread G, and one object per call.
 *
 * G takes events from the queue and posts them to L; only chunks of an Execute stream are processed on G
 * itself (rk_rpc_handler.consume). Everything below runs on L unless stated otherwise. Handlers never block.
 *
 * Life of a call: it arrives on G, which arms the next accept, starts RECV_CLOSE for a stream (the only
 * notice that a peer has disconnected) and posts it. L checks the token against the metadata before a byte of
 * the body is read, then reads. A unary call gets its RECV_CLOSE when its answer is deferred, or in the batch
 * of the answer: each batch is a round through gRPC. A call is freed when RECV_CLOSE and every other batch
 * have returned and no reference is left.
 */
#ifndef RK_DAEMON_RPC_H
#define RK_DAEMON_RPC_H

#include <stdbool.h>
#include <stdint.h>

#include <grpc/grpc.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "base/net/rk_tls.h"
#include "daemon/auth_internal.h"
#include "daemon/guard/guard.h"
#include "daemon/guard/listen.h"
#include "daemon/loop_internal.h"
#include "proto/rk_messages.h"
#include "proto/rk_rpcs.h"

#define RK_RPC_FIRST_MESSAGE_MS 10000 /* from arrival to the first complete message */

struct rk_daemon;
struct rk_call;

/* Answers a request by filling `reply`, or by an error. The request is borrowed until the call ends; of a
 * stream, until the next one. */
typedef struct rk_status *rk_call_answer_fn(struct rk_call *call, struct rk_bytes request,
                                            struct rk_str *reply);

/* The handler of an RPC (table: rpcs.c). */
struct rk_rpc_handler {
    rk_call_answer_fn *unary; /* UNARY; may also answer later, after rk_call_defer */

    /* Streams; the message is borrowed. NULL: the client has closed its side. Read on with rk_call_read. */
    void (*on_message)(struct rk_call *call, struct grpc_byte_buffer *message);
    /* optional. G: true: the message does not concern L, continue reading. Called only while a read is in
     * progress. */
    bool (*consume)(struct rk_call *call, struct grpc_byte_buffer *message);
    void (*on_sent)(struct rk_call *call); /* the message of rk_call_send was taken by gRPC; send the next */
    void (*on_end)(struct rk_call *call);  /* last callback: nothing is in progress. optional */
    void (*on_tick)(struct rk_call *call); /* every RK_TICK_MS until the call is finished. optional */
    /* optional: the stream never ends by itself. Shutdown finishes such streams first. */
    bool is_endless;
};

const struct rk_rpc_handler *rk_rpc_handler_get(rk_rpc_id_t id);

/* --- the server --- */
struct rk_server;

struct rk_server_config {
    struct rk_daemon *daemon;
    struct rk_loop *loop;
    const struct rk_auth *auth; /* borrowed; rk_server_set_auth replaces it */
    const struct rk_listen *listen;
    struct rk_tls *tls; /* of TCP; NULL: plain */
    rk_tls_demand_t tls_demand;
    bool has_reflection;
    bool is_health_only; /* all other paths are UNIMPLEMENTED, with or without a token */
    void (*on_stopped)(struct rk_daemon *daemon); /* G has ended; rk_server_destroy will not wait */
};

/* Binds, and starts a thread G. Reason ADDRESS_IN_USE when another process has the address. */
struct rk_status *rk_server_create(struct rk_server **out,
                                   const struct rk_server_config *config) RK_NODISCARD;
/* After on_stopped. NULL is a no-op. */
void rk_server_destroy(struct rk_server *server);
const char *rk_server_address(const struct rk_server *server);
void rk_server_set_auth(struct rk_server *server, const struct rk_auth *auth);
void rk_server_tick(struct rk_server *server);
/* Closes the listeners and ends endless streams; other calls continue. on_stopped follows when the last call
 * has ended. */
void rk_server_begin_shutdown(struct rk_server *server);
void rk_server_cancel_calls(struct rk_server *server);
/* Nanoseconds since G last polled its queue: small unless G is stuck. */
int64_t rk_server_queue_age_ns(const struct rk_server *server);

/* Adds the calls in flight: one count per RPC, then one for unknown paths. */
void rk_server_count_calls(const struct rk_server *server, int counts[RK_RPC_COUNT + 1]);
void rk_server_get_guard_stats(const struct rk_server *server, struct rk_guard_stats *out);
/* Whether the thread that accepts connections has responded within the last seconds. */
bool rk_server_listens(const struct rk_server *server);
/* Whether every new connection of the last seconds was accepted. */
bool rk_server_takes_connections(const struct rk_server *server);

/* --- calls --- */
struct rk_daemon *rk_call_daemon(const struct rk_call *call);
/* Scratch memory with the lifetime of the call. */
struct rk_arena *rk_call_arena(struct rk_call *call);
/* State of the handler. */
void rk_call_set_user(struct rk_call *call, void *user);
void *rk_call_user(const struct rk_call *call);
bool rk_call_is_finished(const struct rk_call *call); /* finished here, or the peer has disconnected */
bool rk_call_is_sending(const struct rk_call *call);
/* Asks for the next message (handler->on_message). One at a time; nothing happens on a finished call. */
void rk_call_read(struct rk_call *call);
/* Takes the buffer. One at a time: wait for on_sent. */
void rk_call_send(struct rk_call *call, struct grpc_byte_buffer *message);
/* rk_call_send for the last message: the call then ends with OK. */
void rk_call_send_last(struct rk_call *call, struct grpc_byte_buffer *message);
/* A stream in which each request gets one answer: on_message of its handler, whose on_sent is rk_call_read.
 * Requests have at most bytes_max bytes; an error ends the call. */
void rk_call_answer_each(struct rk_call *call, struct grpc_byte_buffer *message, size_t bytes_max,
                         rk_call_answer_fn *answer);
/* Ends the call; takes the status. Nothing happens on a finished call. */
void rk_call_finish(struct rk_call *call, struct rk_status *st);
/* rk_call_finish for a failure that is in the log already, with the name and the number of its call. */
void rk_call_finish_logged(struct rk_call *call, struct rk_status *st);
/* rk_call_finish for a peer that does not read: the message in progress is dropped, so the call ends now,
 * with only code and message. */
void rk_call_cut(struct rk_call *call, struct rk_status *st);
/* Unary: the handler answers after it has returned, exactly once, with one of these. */
void rk_call_defer(struct rk_call *call);
void rk_call_answer(struct rk_call *call, struct rk_status *st, const struct rk_str *reply);

#endif
