/* One chunk stream: a call of Execute with its data in both directions ("stream" below).
 *
 *   HEADER --header is good: memory reserved--> BODY --last byte--> ACCEPTED --Commit--> RUNNING
 *   HEADER --request is known--> RUNNING (attached), or SENDING (replayed)
 *   RUNNING --job ended--> SENDING
 *
 * HEADER, BODY, ACCEPTED: when the stream ends for any reason, everything is dropped and the seq stays free.
 * RUNNING: the operation continues without the stream.
 *
 * L owns it, except the upload, which belongs to G while a read is in progress. */
#ifndef RK_DAEMON_EXECUTE_H
#define RK_DAEMON_EXECUTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/daemon_internal.h"
#include "daemon/operation_internal.h"
#include "proto/rk_stream.h"

typedef enum rk_execute_stage {
    RK_EXECUTE_STAGE_HEADER,
    RK_EXECUTE_STAGE_BODY,
    RK_EXECUTE_STAGE_ACCEPTED,
    RK_EXECUTE_STAGE_RUNNING,
    RK_EXECUTE_STAGE_SENDING
} rk_execute_stage_t;

/* The destination of the chunks. */
struct rk_chunk_sink {
    struct rk_assembler *assembler; /* G; NULL until the header is accepted */
    void **data;                    /* by tensor; in the job's plan_arena, not used once complete */
    uint64_t total_bytes;
    atomic_ullong received_bytes;        /* G writes */
    struct rk_status *status;            /* G writes, then passes the message to L */
    struct rk_loop_event complete_event; /* G posts it after the last byte */
};

/* Progress of sending the result. */
struct rk_download {
    bool has_sent_result;
    int64_t num_tensors, tensor;
    uint64_t offset;
    const struct rk_column **columns;
};

struct rk_execute {
    struct rk_call *call;
    rk_execute_stage_t stage;
    struct rk_operation *operation; /* until SENDING; BODY and ACCEPTED own it */
    struct rk_execute *next;        /* of the operation's chunk streams */
    struct rk_chunk_sink upload;
    int64_t window_begin_ns; /* BODY: slow senders are cut */
    uint64_t window_bytes;
    bool two_phase, collect;
    bool is_brief;     /* neither Accepted nor progress is sent, and nothing more is received */
    const char **want; /* columns of the result, NULL-terminated; NULL: all */
    /* still to be sent, in this order */
    bool owes_accepted;
    bool is_replayed; /* fixed by the header: G reads it as well */
    uint64_t accepted_seq;
    uint8_t plan_hash[RK_SHA256_BYTES];
    bool owes_progress;
    uint64_t progress_done, progress_total;
    char progress_phase[32];
    struct rk_result *result;
    struct rk_download download;
};

/* --- rpc_execute.c --- */
/* Ends a chunk stream whose operation is not committed; takes the status. */
void rk_execute_drop(struct rk_execute *execute, struct rk_status *st);
/* The operation has ended: its chunk streams send the result. */
void rk_execute_deliver(struct rk_operation *operation, struct rk_result *result);
/* The operation will not end: its chunk streams do. */
void rk_execute_give_up(struct rk_operation *operation, const struct rk_status *why);

/* --- execute_check.c --- */
/* All checks of a header before its body arrives. Fills the operation's job and the upload,
 * and reserves memory. `arena` holds the header and becomes the job's, on failure too. */
struct rk_status *rk_execute_check(struct rk_operation *operation, struct rk_chunk_sink *upload,
                                   const struct rk_execute_header *header,
                                   struct rk_arena *arena) RK_NODISCARD;
/* SHA-256 of the header without its fencing tokens: equal for a repeated request. */
void rk_execute_digest(const struct rk_execute_header *header, uint8_t digest[RK_SHA256_BYTES]);

/* --- execute_send.c --- */
/* Sends the next message when none is in progress. */
void rk_execute_pump(struct rk_execute *execute);

#endif
