/* The driver's objects. Every wait is a completion queue pumped by the thread that waits: a blocking call
 * makes a queue, starts operations whose tags are embedded in their objects, and pumps until they are done.
 * Only the lease thread exists longer; its shared state is in struct rk_lease_keeper. */
#ifndef RK_DRIVER_INTERNAL_H
#define RK_DRIVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include <grpc/grpc.h>

#include "driver/identity_internal.h"
#include "driver/tls_internal.h"
#include "driver/rk_driver.h"

#define RK_DRIVER_POLL_MS 100 /* interval in which waiting code checks interrupts and timeouts */

/* One completion: the queue's tag points here. */
struct rk_tag {
    void (*on_event)(struct rk_tag *tag, bool ok);
};

/* The object that a tag is the member of. */
#define RK_OWNER_OF(tag, type, member) ((type *)((char *)(tag)-offsetof(type, member)))

/* Handles one event; false when none came within timeout_ms. */
bool rk_pump(grpc_completion_queue *queue, int64_t timeout_ms);
/* Shuts the queue down, handles the remaining events and destroys it. */
void rk_pump_end(grpc_completion_queue *queue);
gpr_timespec rk_deadline_in(int64_t timeout_ms);

/* One daemon. */
struct rk_client {
    int32_t rank; /* = index in the driver's list */
    char *address;
    grpc_channel *data, *control; /* separate connections, so that control calls do not wait for chunks */
    char *token;                  /* "Bearer TOKEN"; NULL: none */
    _Atomic bool is_reached;      /* it has answered before, so its certificates are valid */
    struct rk_fence fence;        /* of the lease; lease_id points at lease_id_bytes */
    uint8_t lease_id_bytes[16];
    uint64_t next_seq; /* of the next committed call; owned by the call whose turn it is */
    uint64_t incarnation;
};

struct rk_role_entry {
    char role[32];
    struct rk_mesh *mesh;
};

struct rk_upload;
struct rk_lease_keeper;
struct rk_invocation;

/* Calls in flight, oldest first. */
struct rk_turns {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rk_invocation *first;
};

struct rk_driver {
    struct rk_client *clients;
    int32_t num_clients;
    int32_t dry_world_size; /* 0: no dry run, client i is rank i of a world of num_clients */
    int32_t dry_rank;       /* of a dry run: of client 0 */
    char *dry_device;       /* NULL: the daemon's */
    struct rk_driver_tls tls;
    char *token, *driver_id;
    int64_t lease_ttl_ms, control_timeout_ms;
    bool takeover;
    size_t chunk_bytes;
    char *device_kind;  /* of all workers, from the last configure; NULL before */
    char *device_model; /* of the first worker, "NVIDIA H200"; NULL before */
    atomic_int interrupts;
    grpc_completion_queue *_Atomic spare_queue; /* empty, for the next call; NULL: none */
    atomic_int num_pumping;                     /* threads in a call: they poll the sockets of all calls */
    atomic_uint num_pumped;                     /* calls so far */

    char *identity_dir; /* NULL: none */
    bool has_identity;  /* taken at the first claim */
    struct rk_identity identity;
    struct rk_lease_keeper *lease; /* NULL: not claimed */
    atomic_bool
        is_lost; /* a worker was lost in a call: its sequence number is unknown until the next claim */
    struct rk_turns turns;
    uint64_t epoch, mesh_generation;
    int32_t num_roles;
    struct rk_role_entry roles[RK_LIMIT_ROLES];
    struct rk_upload *uploads; /* whose bytes gRPC may still hold */
};

/* Rank of a client in the world. */
static inline int32_t rk_driver_rank_of(const struct rk_driver *driver, int32_t client)
{
    return driver->dry_world_size > 0 ? driver->dry_rank : client;
}

/* Around the calls of rk_pump that wait for the end of a call: the lease's thread stays out of gRPC then. */
static inline void rk_driver_begin_pumping(struct rk_driver *driver)
{
    atomic_fetch_add(&driver->num_pumping, 1);
    atomic_fetch_add(&driver->num_pumped, 1);
}

static inline void rk_driver_end_pumping(struct rk_driver *driver)
{
    atomic_fetch_sub(&driver->num_pumping, 1);
}

/* --- channels and unary calls (client.c) --- */
/* A queue for the events of a call. Creating and destroying one takes 4 us, so one is kept. */
grpc_completion_queue *rk_driver_take_queue(struct rk_driver *driver);
/* All calls of the queue have ended. */
void rk_driver_give_queue(struct rk_driver *driver, grpc_completion_queue *queue);

/* Takes the token. */
void rk_client_init(struct rk_client *client, int32_t rank, const char *address, char *token,
                    const struct rk_driver_tls *tls);
void rk_client_fini(struct rk_client *client);
grpc_call *rk_client_open_call(struct rk_client *client, grpc_channel *channel, rk_rpc_id_t rpc,
                               int64_t timeout_ms, grpc_completion_queue *queue);
/* The status that a call ended with, from what RECV_STATUS_ON_CLIENT delivered; NULL for OK. */
struct rk_status *rk_client_status(grpc_status_code code, grpc_slice details,
                                   const grpc_metadata_array *trailing);

struct rk_unary {
    struct rk_tag tag;
    bool is_done;
    grpc_call *call;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *reply;
    grpc_status_code code;
    grpc_slice details;
};

void rk_unary_start(struct rk_unary *unary, struct rk_client *client, rk_rpc_id_t rpc,
                    const struct rk_str *request, int64_t timeout_ms, grpc_completion_queue *queue);
/* The reply of a done call as bytes in the arena, or its status. */
struct rk_status *rk_unary_take(struct rk_unary *unary, struct rk_arena *arena,
                                struct rk_bytes *reply) RK_NODISCARD;
void rk_unary_fini(struct rk_unary *unary);

/* A streaming call from its opening to its status; messages are the owner's. */
struct rk_client_stream {
    grpc_call *call; /* NULL: not open */
    int num_pending; /* operations whose event is outstanding; the owner counts down */
    grpc_metadata_array initial, trailing;
    grpc_status_code code; /* once on_status came, like details */
    grpc_slice details;
};

/* Sends `message` (borrowed; NULL: none) with the headers, of which on_open tells; on_status gets the last
 * event of the call. The stream is zeroed or was closed. */
void rk_client_stream_open(struct rk_client_stream *stream, const struct rk_client *client, grpc_call *call,
                           grpc_byte_buffer *message, struct rk_tag *on_open, struct rk_tag *on_status);
/* Instead of rk_client_stream_open: sends `message` and the half-close, and receives one message and the
 * status, all in one batch: on_end gets the only event of the call. */
void rk_client_stream_call(struct rk_client_stream *stream, const struct rk_client *client, grpc_call *call,
                           grpc_byte_buffer *message, grpc_byte_buffer **reply, struct rk_tag *on_end);
/* Starts one operation. */
void rk_client_stream_start(struct rk_client_stream *stream, const grpc_op *op, struct rk_tag *tag);
/* Nothing may be pending. A no-op when it is not open. */
void rk_client_stream_close(struct rk_client_stream *stream);

/* One RPC on several daemons at once. */
struct rk_fanout {
    struct rk_client *client; /* NULL: skipped */
    struct rk_str request;
    struct rk_bytes reply;   /* in the arena */
    struct rk_status *error; /* without the worker's name */
};

enum rk_fanout_run_flags {
    RK_FANOUT_IGNORE_INTERRUPT = 1u << 0, /* clean-up that must also happen after Ctrl-C */
    RK_FANOUT_ALL_OR_NONE = 1u << 1,      /* a failure ends the other calls, which may be waiting for it */
};

/* items[num_clients]. Returns when all have ended. */
void rk_fanout_run(struct rk_driver *driver, rk_rpc_id_t rpc, struct rk_fanout *items, int64_t timeout_ms,
                   uint32_t flags, struct rk_arena *arena);
struct rk_fanout *rk_fanout_create(struct rk_driver *driver);   /* one item a client */
void rk_fanout_destroy(struct rk_fanout *items, int32_t count); /* errors too */
/* The first error that was not caused by another one, with its worker's name; the others are freed. NULL when
 * there is none. */
struct rk_status *rk_fanout_take_error(struct rk_driver *driver, struct rk_fanout *items) RK_NODISCARD;

/* --- server streams (read_streams.c) --- */
struct rk_read_args {
    rk_rpc_id_t rpc;
    int64_t timeout_ms; /* 0: none */
    /* The message and the arena live until it returns; an error ends this worker's stream with it. */
    struct rk_status *(*on_message)(void *user, int32_t worker, struct rk_bytes message,
                                    struct rk_arena *arena);
    void (*on_end)(void *user, int32_t worker, const struct rk_status *st); /* borrowed; may be NULL */
    void *user;
};

/* One call to each daemon, on the control connection; item.error is its status. Returns when all have ended.
 */
void rk_read_streams(struct rk_driver *driver, struct rk_fanout *items, const struct rk_read_args *args);

/* --- meshes (configure.c) --- */
/* Compares the coordinates that a daemon reports with the mesh arithmetic: exactly its roles, with the
 * correct coordinates. If this holds on all ranks, their coordinates are complete and without duplicates. */
struct rk_status *rk_check_rank_info(const struct rk_rank_info *info, const struct rk_role_entry *roles,
                                     int32_t num_roles, int32_t rank, int32_t world_size) RK_NODISCARD;

/* --- errors (errors.c) --- */
struct rk_rank_error {
    int32_t rank;
    const char *address;
    struct rk_status *status; /* owned; NULL: this rank is fine */
    int32_t order;            /* of arrival */
    bool is_lost;             /* the connection ended without an answer of the daemon */
};

/* "worker 3 (addr, rank 3): CODE REASON: message", same code and reason. Takes the status. */
struct rk_status *rk_error_of_worker(struct rk_status *st, int32_t rank, const char *address) RK_NODISCARD;
/* Index of the error where the failure began, or -1 without errors. */
int32_t rk_error_find_root(const struct rk_rank_error *errors, int32_t count);
/* One status for the call: the root cause first, then the number of other ranks that ended because of it, the
 * coordinates in `mesh` (NULL: omitted) of `role`, and, if its daemon is lost, the operation of the first
 * other rank. Frees all. */
struct rk_status *rk_error_of_call(struct rk_rank_error *errors, int32_t count, const char *role,
                                   const struct rk_mesh *mesh) RK_NODISCARD;

/* --- metrics (reduce.c) --- */
/* An object of numbers (null where one is not finite), in the order in which the names come. Extremes count
 * on every rank. Sums, means and last values hold parts of one global number, which each replica reports
 * once: on the rank that collects. results[rank] is NULL for a rank that took no part. */
struct rk_json *rk_reduce_metrics(const struct rk_execute_result *const *results, const bool *collects,
                                  int32_t num_ranks);

/* --- lease (lease.c) --- */
/* FAILED_PRECONDITION (LEASE_EXPIRED) when a renewal is overdue, so that no call is sent with a lapsed
 * lease. */
struct rk_status *rk_driver_check_lease(struct rk_driver *driver) RK_NODISCARD;

/* --- batches that are being sent (upload.c) --- */
/* A chunk of the batch, encoded once for all ranks that get it. */
struct rk_upload {
    struct rk_upload *next;
    atomic_int num_held; /* chunk messages whose bytes gRPC still references, plus one until rk_upload_end */
    struct rk_batch *chunk;
    struct rk_arena *arena;
    struct rk_batch_spec spec;
    int64_t num_messages;
    grpc_byte_buffer **messages;
};

/* `chunk` is referenced (its columns are shared). The upload belongs to the driver from here on. */
struct rk_status *rk_upload_create(struct rk_upload **out, struct rk_driver *driver,
                                   const struct rk_batch *chunk) RK_NODISCARD;
/* Drops the messages; memory is freed when gRPC has released it too. From any thread; the last use of the
 * upload.
 */
void rk_upload_end(struct rk_upload *upload);
/* Frees the ended uploads whose bytes gRPC has released; with `wait`, all of them. */
void rk_upload_reap(struct rk_driver *driver, bool wait);

/* --- one Execute stream (call_stream.c) --- */
struct rk_call_stream;

struct rk_call_stream_config {
    struct rk_client *client;
    const struct rk_upload *upload;         /* NULL: no input columns */
    const struct rk_execute_header *header; /* fence, seq and collect are set by the stream */
    bool collect;
    bool is_brief;      /* one message each way; neither committed nor cancelled, only abandoned */
    int64_t timeout_ms; /* of the RPC; 0: none */
    grpc_completion_queue *queue;
    void (*on_progress)(void *user, int32_t rank, const struct rk_progress *progress);
    void *user;
};

struct rk_status *rk_call_stream_open(struct rk_call_stream **out,
                                      const struct rk_call_stream_config *config) RK_NODISCARD;
void rk_call_stream_destroy(struct rk_call_stream *stream); /* after is_finished; NULL is a no-op */
bool rk_call_stream_is_finished(const struct rk_call_stream *stream);
bool rk_call_stream_is_accepted(const struct rk_call_stream *stream);
const uint8_t *rk_call_stream_plan_hash(
    const struct rk_call_stream *stream); /* RK_SHA256_BYTES; of an accepted one */
int64_t rk_call_stream_last_event_ns(const struct rk_call_stream *stream);
void rk_call_stream_commit(struct rk_call_stream *stream); /* not of a cancelled one */
/* Before the commit: withdraws the call, which leaves its sequence number free. After it: requests a cancel
 * of the method, which the daemon receives after the commit. `reason` is borrowed until the stream is
 * finished. */
void rk_call_stream_cancel(struct rk_call_stream *stream, const char *reason);
/* Ends the stream from this side. `st` becomes its error unless it has one (stolen). */
void rk_call_stream_abandon(struct rk_call_stream *stream, struct rk_status *st);
/* Results of a finished stream; take: the caller owns them. *is_lost: the connection ended without an answer.
 */
struct rk_status *rk_call_stream_take_error(struct rk_call_stream *stream, bool *is_lost) RK_NODISCARD;
struct rk_batch *rk_call_stream_take_output(struct rk_call_stream *stream);
const struct rk_execute_result *rk_call_stream_result(const struct rk_call_stream *stream);

#endif
