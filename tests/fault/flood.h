/* Peers that flood a daemon with frames of HTTP/2, or with TLS handshakes: NUM_ATTACKERS threads send as fast
 * as they can, and reconnect when their connection is closed.
 *
 * They simulate other machines: their priority is RK_TEST_ATTACKER_NICE (default 10) lower than that of the
 * test and its daemon; with 0 they compete for the cores like any other process. */
#ifndef RK_TEST_FLOOD_H
#define RK_TEST_FLOOD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rk_str.h"
#include "base/net/rk_tls.h"

RK_BEGIN_DECLS

#define FLOOD_ATTACKERS 8

typedef enum flood_kind {
    FLOOD_RESETS,
    FLOOD_UNKNOWN_RESETS, /* of paths that the daemon does not serve */
    FLOOD_CONTINUATIONS,
    FLOOD_ENDLESS_FIELD,
    FLOOD_EMPTY_CONTINUATIONS,
    FLOOD_PINGS,
    FLOOD_SETTINGS,
    FLOOD_OPEN_CALLS,
    FLOOD_COUNT
} flood_kind_t;

struct flood {
    const char *label;
    /* Appends the next frames of a connection; `stream` is the next unused number. */
    void (*append)(struct rk_str *out, uint32_t *stream);
};

extern const struct flood floods[FLOOD_COUNT];

/* Zeroed, then the first four members are set. */
struct attack {
    const char *address;
    const struct flood *flood;
    struct rk_tls *tls;  /* the attackers use TLS; NULL: no TLS */
    bool only_handshake; /* and close when the daemon has done its part of the handshake */
    int lower_nice;
    _Atomic bool is_over;
    _Atomic int64_t sent_bytes;
    _Atomic int num_connections;
    pthread_t threads[FLOOD_ATTACKERS];
};

void flood_begin(struct attack *attack);
void flood_end(struct attack *attack);

RK_END_DECLS

#endif
