/* Goal: no bytes of an unauthenticated peer admit it to a mesh, or make either side of the handshake access
 * memory out of bounds. The first byte selects the side and the size of the pieces that arrive; the rest is
 * sent by the other side. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "base/rk_assert.h"
#include "engine/comm/comm_cpu_internal.h"

#define WORLD_SIZE 4
#define MY_RANK    1
#define GENERATION 7

static const uint8_t id[RK_COMM_ID_BYTES] = {'k', 'e', 'y'};
static const uint8_t nonce[RK_CPU_NONCE_BYTES] = {'n', 'o', 'n', 'c', 'e'};
/* Rank 3 already has its data connection. */
static const bool is_taken[WORLD_SIZE * RK_CPU_CHANNEL_COUNT] = {
    [3 * RK_CPU_CHANNEL_COUNT + RK_CPU_CHANNEL_DATA] = true};
static const struct rk_cpu_rules rules = {
    .rank = MY_RANK, .world_size = WORLD_SIZE, .generation = GENERATION, .id = id, .is_taken = is_taken};

/* Checks that an admitted peer was authenticated. `said` has all bytes that it sent. */
static void check_admitted(const struct rk_cpu_acceptor *acceptor, const uint8_t *said)
{
    struct rk_cpu_challenge challenge = {.verdict = RK_CPU_VERDICT_OK};
    struct rk_cpu_hello hello;
    uint8_t proof[RK_CPU_PROOF_BYTES];

    memcpy(&hello, said, sizeof(hello));
    RK_ASSERT(memcmp(&acceptor->hello, &hello, sizeof(hello)) == 0);
    RK_ASSERT(hello.from_rank > MY_RANK);
    RK_ASSERT(hello.from_rank < WORLD_SIZE);
    RK_ASSERT(hello.to_rank == MY_RANK);
    RK_ASSERT(hello.world_size == WORLD_SIZE);
    RK_ASSERT(hello.generation == GENERATION);
    RK_ASSERT(hello.channel < RK_CPU_CHANNEL_COUNT);
    RK_ASSERT(!is_taken[(size_t)hello.from_rank * RK_CPU_CHANNEL_COUNT + hello.channel]);
    memcpy(challenge.nonce, nonce, sizeof(nonce));
    rk_cpu_prove(proof, &hello, &challenge, id);
    RK_ASSERT(memcmp(proof, said + sizeof(hello), sizeof(proof)) == 0);
}

static void run_listener(const uint8_t *data, size_t bytes, size_t piece)
{
    struct rk_cpu_acceptor acceptor;
    uint8_t reply[RK_CPU_REPLY_BYTES];
    size_t at = 0, wanted;

    rk_cpu_acceptor_init(&acceptor, nonce);
    while ((wanted = rk_cpu_acceptor_wanted(&acceptor)) > 0 && at < bytes) {
        size_t taken = RK_MIN(RK_MIN(wanted, piece), bytes - at);
        size_t reply_bytes = rk_cpu_acceptor_feed(&acceptor, &rules, data + at, taken, reply);

        RK_ASSERT(reply_bytes <= sizeof(reply));
        RK_ASSERT((reply_bytes > 0) == (taken == wanted));
        at += taken;
    }
    if (acceptor.stage == RK_CPU_ACCEPT_DONE)
        check_admitted(&acceptor, data);
}

static void run_connector(const uint8_t *data, size_t bytes)
{
    struct rk_cpu_challenge challenge = {0};
    struct rk_cpu_hello hello;
    struct rk_status *st;

    rk_cpu_hello_init(&hello, 2, MY_RANK, WORLD_SIZE, GENERATION, RK_CPU_CHANNEL_DATA);
    memcpy(&challenge, data, RK_MIN(bytes, sizeof(challenge)));
    st = rk_cpu_challenge_check(&challenge, &hello, id);
    if (challenge.verdict != RK_CPU_VERDICT_OK)
        RK_ASSERT(st);
    if (!st)
        RK_ASSERT(bytes >= sizeof(challenge)); /* a proof of zeros is invalid */
    rk_status_free(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (data[0] & 1)
        run_connector(data + 1, bytes - 1);
    else
        run_listener(data + 1, bytes - 1, (size_t)(data[0] >> 1) + 1);
    return 0;
}
