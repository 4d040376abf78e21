/* A small blocking gRPC client for tests: one call at a time in a thread, every wait with a deadline.
 *
 * It is intentionally separate from the product's client: it can also send invalid data. */
#ifndef RK_TEST_CLIENT_H
#define RK_TEST_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "base/net/rk_tls.h"
#include "proto/rk_messages.h"
#include "proto/rk_rpcs.h"
#include "proto/rk_stream.h"

RK_BEGIN_DECLS

struct rk_client;
struct rk_client_stream;

/* A new connection. `token` is sent in the authorization header; NULL: none. */
struct rk_client *rk_client_create(const char *address, const char *token);
/* With TLS and these files; the daemon must have a certificate for the address's host. */
struct rk_client *rk_client_create_tls(const char *address, const char *token,
                                       const struct rk_tls_files *files);
void rk_client_destroy(struct rk_client *client); /* NULL is a no-op */
/* Memory for the results of the calls below; freed with the client. */
struct rk_arena *rk_client_arena(struct rk_client *client);

/* Unary. `reply` may be NULL. */
struct rk_status *rk_client_call(struct rk_client *client, rk_rpc_id_t rpc, const struct rk_str *request,
                                 struct rk_bytes *reply) RK_NODISCARD;
struct rk_status *rk_client_call_path(struct rk_client *client, const char *path,
                                      const struct rk_str *request, struct rk_bytes *reply) RK_NODISCARD;

/* --- streams --- */
struct rk_client_stream *rk_client_open(struct rk_client *client, rk_rpc_id_t rpc);
/* False if the call has ended: rk_client_finish returns its status. */
bool rk_client_send(struct rk_client_stream *stream, const struct rk_str *message);
bool rk_client_send_chunk(struct rk_client_stream *stream, uint32_t tensor, uint64_t offset, const void *data,
                          size_t bytes);
void rk_client_half_close(struct rk_client_stream *stream);
/* Next message in the client's arena; false at the end of the call. */
bool rk_client_receive(struct rk_client_stream *stream, struct rk_bytes *message);
/* rk_client_receive for Execute: the bytes of a chunk are its data. */
bool rk_client_receive_frame(struct rk_client_stream *stream, struct rk_stream_frame *frame,
                             struct rk_bytes *bytes);
void rk_client_cancel(struct rk_client_stream *stream);
/* Waits for the status and frees the stream. */
struct rk_status *rk_client_finish(struct rk_client_stream *stream) RK_NODISCARD;

/* --- setup of most tests --- */
struct rk_client_lease {
    struct rk_fence fence; /* lease_id points to id */
    uint8_t id[16];
    uint32_t ttl_ms;
    uint64_t last_seq;
};

struct rk_status *rk_client_get_status(struct rk_client *client, struct rk_worker_status *out) RK_NODISCARD;
struct rk_status *rk_client_acquire(struct rk_client *client, const struct rk_acquire_lease_request *request,
                                    struct rk_client_lease *out) RK_NODISCARD;
/* Both rounds of Configure, for a world of this daemon alone, with a mesh of one rank for each role
 * (NULL-terminated). */
struct rk_status *rk_client_configure_alone(struct rk_client *client, const struct rk_client_lease *lease,
                                            uint64_t mesh_generation, const char *const *roles) RK_NODISCARD;

RK_END_DECLS

#endif
