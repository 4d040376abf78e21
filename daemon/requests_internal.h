/* The request table: the outcome of the last committed calls, so that a repeated request_id is answered and
 * not run again. Pure bookkeeping over entries that the caller owns and embeds: at most
 * RK_LIMIT_STORED_REQUESTS of them, and results up to a number of bytes, newest first. */
#ifndef RK_REQUESTS_INTERNAL_H
#define RK_REQUESTS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_hash.h"
#include "base/rk_status.h"
#include "proto/limits.h"

#define RK_REQUEST_ID_BYTES 16

typedef enum rk_request_state {
    RK_REQUEST_OPEN,    /* not committed yet: not in the table */
    RK_REQUEST_RUNNING, /* committed; never evicted */
    RK_REQUEST_DONE,    /* ended; the result is kept */
    RK_REQUEST_EXPIRED  /* ended; the result was dropped */
} rk_request_state_t;

struct rk_request {
    uint8_t id[RK_REQUEST_ID_BYTES];
    uint8_t digest[RK_SHA256_BYTES]; /* of the header without its fencing tokens */
    rk_request_state_t state;
    size_t result_bytes;
};

struct rk_requests {
    struct rk_request *entries[RK_LIMIT_STORED_REQUESTS]; /* oldest first */
    int64_t count;
    size_t stored_bytes, limit_bytes;
    void (*drop_result)(struct rk_request *request); /* DONE -> EXPIRED */
    void (*destroy)(struct rk_request *request);     /* leaves the table */
};

/* The entry with this id and any digest; NULL when unknown. */
struct rk_request *rk_requests_find(const struct rk_requests *table, const void *id);
/* Classifies a header with this id: *out NULL: a new request; else one to attach to or to replay.
 * DIGEST_MISMATCH when the id was used for another call, RESULT_EXPIRED when the result was dropped. */
struct rk_status *rk_requests_lookup(struct rk_request **out, const struct rk_requests *table, const void *id,
                                     const uint8_t digest[RK_SHA256_BYTES]) RK_NODISCARD;
/* OPEN -> RUNNING. A full table drops its oldest entry that has ended; asserts that there is one. */
void rk_requests_add(struct rk_requests *table, struct rk_request *request);
/* RUNNING -> DONE with a result of that many bytes; old results are dropped until all fit (this one too, if
 * it alone exceeds the limit). */
void rk_requests_finish(struct rk_requests *table, struct rk_request *request, size_t result_bytes);
int64_t rk_requests_num_running(const struct rk_requests *table);
/* The grace period is over: drops all results. */
void rk_requests_drop_results(struct rk_requests *table);
/* Destroys every entry; asserts that none is running. */
void rk_requests_clear(struct rk_requests *table);

#endif
