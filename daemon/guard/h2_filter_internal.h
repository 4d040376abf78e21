/* Limits of a peer's HTTP/2 frames before authentication: reads frame headers and lets bytes pass, holds
 * them back for some time, or has the connection cut.
 *
 * It reads only frame headers (and the code of a reset); header blocks pass unchanged. One object per
 * connection, which gets the bytes of both directions; no I/O, no memory besides its own. Reasons and
 * measurements: docs/adr/0009-a-guard-before-grpc.md. */
#ifndef RK_H2_FILTER_INTERNAL_H
#define RK_H2_FILTER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- limits; also listed in docs/rpc.md --- */

/* A client that needs more time for its preface and first SETTINGS, or for a header block, is cut. */
#define RK_H2_GREETING_MS 5000
#define RK_H2_BLOCK_MS    5000
/* Maximum encoded size of a header block and number of its frames; beyond: cut. gRPC takes 16 KiB of
 * metadata. */
#define RK_H2_BLOCK_BYTES  (32 << 10)
#define RK_H2_BLOCK_FRAMES 8
/* Maximum size of any frame except DATA; beyond: cut. */
#define RK_H2_CONTROL_BYTES (32 << 10)
/* Calls that are open at a time. The server announces 64; a client may have opened some more before it read
 * that; beyond: cut. */
#define RK_H2_OPEN_MAX 128

/* Held back beyond: burst and rate per second, per connection. */
#define RK_H2_RESETS_BURST   128 /* calls that the client resets before the server has ended them */
#define RK_H2_RESETS_RATE    32
#define RK_H2_CONTROLS_BURST 1024 /* SETTINGS, PING, PRIORITY, empty DATA and other frames without data */
#define RK_H2_CONTROLS_RATE  256
/* These limits for all unauthorised connections together, after the first frames of each. */
#define RK_H2_ALL_RESETS_BURST   256
#define RK_H2_ALL_RESETS_RATE    128
#define RK_H2_FREE_RESETS        2
#define RK_H2_ALL_CONTROLS_BURST 1024
#define RK_H2_ALL_CONTROLS_RATE  512
#define RK_H2_FREE_CONTROLS      16
/* WINDOW_UPDATE and small DATA frames before the first authorised call. */
#define RK_H2_UPDATES_BURST 4096
#define RK_H2_UPDATES_RATE  1024

#define RK_H2_SMALL_DATA_BYTES 64 /* a smaller DATA frame counts as a WINDOW_UPDATE */
#define RK_H2_HEAD_BYTES       9

/* Token bucket that refills with time. */
struct rk_h2_bucket {
    double tokens; /* may be negative after a forced take */
    double burst, rate;
    int64_t seen_ns;
};

void rk_h2_bucket_init(struct rk_h2_bucket *bucket, double burst, double rate, int64_t now_ns);
/* 0 when a token is available now, else the time of the next one. Takes nothing. */
int64_t rk_h2_bucket_wait_until(struct rk_h2_bucket *bucket, int64_t now_ns);

typedef enum rk_h2_verdict {
    RK_H2_PASS, /* all complete data has passed: give more */
    RK_H2_WAIT, /* the rest may be tried again at wait_until_ns */
    RK_H2_CUT   /* `rule` is the reason */
} rk_h2_verdict_t;

/* Shared by all connections of a thread. */
struct rk_h2_shared {
    struct rk_h2_bucket resets, controls;
};

void rk_h2_shared_init(struct rk_h2_shared *shared, int64_t now_ns);

struct rk_h2_direction {
    uint64_t payload_left; /* remaining bytes of the current frame */
};

struct rk_h2_filter {
    bool is_trusted; /* set by the owner after an authorised call */
    struct rk_h2_bucket resets, controls, updates;
    struct rk_h2_shared *shared; /* borrowed */
    int free_resets, free_controls;

    struct rk_h2_direction client, server;
    size_t preface_bytes;   /* of the client's, seen so far */
    bool is_greeted;        /* preface and the header of SETTINGS were received */
    uint32_t block_stream;  /* of an unfinished header block; 0: none */
    uint64_t block_bytes;   /* so far */
    int block_frames;       /* so far */
    int64_t block_begin_ns; /* or of the connection, before it is greeted */
    uint32_t last_stream;   /* the highest that the client opened */
    int num_open;           /* streams, ascending */
    uint32_t open[RK_H2_OPEN_MAX];

    int64_t wait_until_ns; /* of RK_H2_WAIT */
    const char *rule;      /* of RK_H2_CUT: the violated rule, for messages; static */
};

void rk_h2_filter_init(struct rk_h2_filter *filter, struct rk_h2_shared *shared, int64_t now_ns);

/* Bytes from the client: *passed receives how many may go to the server. The caller passes the rest again
 * with the next call, followed by new bytes; it needs a buffer of RK_H2_HEAD_BYTES for the rest, and keeps
 * all bytes when the verdict is RK_H2_WAIT. After RK_H2_CUT nothing passes. */
rk_h2_verdict_t rk_h2_filter_client(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes,
                                    int64_t now_ns, size_t *passed);
/* Bytes from the server, likewise: they are trusted and never held back. Needs a buffer of RK_H2_HEAD_BYTES +
 * 4 bytes. */
void rk_h2_filter_server(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes, int64_t now_ns,
                         size_t *passed);
/* RK_H2_CUT when the client has been too slow; call it regularly. */
rk_h2_verdict_t rk_h2_filter_tick(struct rk_h2_filter *filter, int64_t now_ns);

#endif
