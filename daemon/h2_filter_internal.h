/* What a peer may do with HTTP/2 before anybody knows who it is: a reader of frame heads that lets bytes
 * pass, holds them back for a while, or has the connection cut.
 *
 * It looks at nothing but the heads of frames (and the code of a reset): header blocks stay as they are. One
 * object a connection, fed with the bytes of both directions; no I/O, no memory but its own. Reason, and what
 * was measured: docs/adr/0009-a-guard-before-grpc.md. */
#ifndef RK_H2_FILTER_INTERNAL_H
#define RK_H2_FILTER_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- limits; docs/rpc.md has them, too --- */

/* A client that is slower than that with its preface and first SETTINGS, or with a header block, is cut. */
#define RK_H2_GREETING_MS 5000
#define RK_H2_BLOCK_MS    5000
/* A header block in its coded form and the frames that it may come in: cut. gRPC takes 16 KiB of metadata. */
#define RK_H2_BLOCK_BYTES  (32 << 10)
#define RK_H2_BLOCK_FRAMES 8
/* Any frame but DATA: cut. */
#define RK_H2_CONTROL_BYTES (32 << 10)
/* Calls that are open at a time. The server announces 64; a client may have opened some more before it read
 * that: cut. */
#define RK_H2_OPEN_MAX 128

/* Held back: so many at once, and so many a second, of a connection. */
#define RK_H2_RESETS_BURST   128 /* calls that the client resets before the server has ended them */
#define RK_H2_RESETS_RATE    32
#define RK_H2_CONTROLS_BURST 1024 /* SETTINGS, PING, PRIORITY, empty DATA and what else carries nothing */
#define RK_H2_CONTROLS_RATE  256
/* The same for all connections together that have not shown a right to call, beyond the first of each. */
#define RK_H2_ALL_RESETS_BURST   256
#define RK_H2_ALL_RESETS_RATE    128
#define RK_H2_FREE_RESETS        2
#define RK_H2_ALL_CONTROLS_BURST 1024
#define RK_H2_ALL_CONTROLS_RATE  512
#define RK_H2_FREE_CONTROLS      16
/* WINDOW_UPDATE and DATA of a few bytes, before a right to call is shown. */
#define RK_H2_UPDATES_BURST 4096
#define RK_H2_UPDATES_RATE  1024

#define RK_H2_SMALL_DATA_BYTES 64 /* below, a DATA frame counts as one of the updates */
#define RK_H2_HEAD_BYTES       9

/* Tokens that come back with time. */
struct rk_h2_bucket {
    double tokens; /* may be negative: what was taken anyway */
    double burst, rate;
    int64_t seen_ns;
};

void rk_h2_bucket_init(struct rk_h2_bucket *bucket, double burst, double rate, int64_t now_ns);
/* 0 when a token is there now, else when there will be one. Takes nothing. */
int64_t rk_h2_bucket_wait_until(struct rk_h2_bucket *bucket, int64_t now_ns);

typedef enum rk_h2_verdict {
    RK_H2_PASS, /* all that is known to be whole has passed: give more */
    RK_H2_WAIT, /* the rest may be tried again at wait_until_ns */
    RK_H2_CUT   /* `rule` says why */
} rk_h2_verdict_t;

/* Of all connections of a thread. */
struct rk_h2_shared {
    struct rk_h2_bucket resets, controls;
};

void rk_h2_shared_init(struct rk_h2_shared *shared, int64_t now_ns);

struct rk_h2_direction {
    uint64_t payload_left; /* bytes of the present frame that pass as they come */
};

struct rk_h2_filter {
    bool is_trusted; /* set by the owner, when the peer has shown a right to call */
    struct rk_h2_bucket resets, controls, updates;
    struct rk_h2_shared *shared; /* borrowed */
    int free_resets, free_controls;

    struct rk_h2_direction client, server;
    size_t preface_bytes;   /* of the client's, seen so far */
    bool is_greeted;        /* preface and the head of SETTINGS were there */
    uint32_t block_stream;  /* of an unfinished header block; 0: none */
    uint64_t block_bytes;   /* so far */
    int block_frames;       /* so far */
    int64_t block_begin_ns; /* or of the connection, before it is greeted */
    uint32_t last_stream;   /* the highest that the client opened */
    int num_open;           /* streams, ascending */
    uint32_t open[RK_H2_OPEN_MAX];

    int64_t wait_until_ns; /* of RK_H2_WAIT */
    const char *rule;      /* of RK_H2_CUT: what the peer did, for people; static */
};

void rk_h2_filter_init(struct rk_h2_filter *filter, struct rk_h2_shared *shared, int64_t now_ns);

/* What the client sends: *passed receives how many of the bytes may go to the server. The rest is given again
 * with the next call, in front of what has come since; the caller needs room for RK_H2_HEAD_BYTES of it, and
 * for all of it when the verdict is RK_H2_WAIT. After RK_H2_CUT nothing passes. */
rk_h2_verdict_t rk_h2_filter_client(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes,
                                    int64_t now_ns, size_t *passed);
/* What the server sends, likewise: it is believed, and never held back. Needs room for RK_H2_HEAD_BYTES + 4
 * bytes. */
void rk_h2_filter_server(struct rk_h2_filter *filter, const uint8_t *data, size_t bytes, int64_t now_ns,
                         size_t *passed);
/* RK_H2_CUT when the client has been too slow; now and then. */
rk_h2_verdict_t rk_h2_filter_tick(struct rk_h2_filter *filter, int64_t now_ns);

#endif
