/* The handshake of the CPU peer network as functions over bytes, without sockets, so that tests and fuzzers
 * can call both sides alone. All input comes from an unauthenticated peer until its proof has been
 * checked. */
#include "engine/comm/comm_cpu_internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_hash.h"

#define HELLO_MAGIC   0x4d434b52u /* "RKCM" */
#define HELLO_VERSION 2u

_Static_assert(sizeof(struct rk_cpu_hello) == 48, "no padding: the proof covers HELLO as bytes");
_Static_assert(sizeof(struct rk_cpu_challenge) == 52, "no padding: CHALLENGE is sent as bytes");
_Static_assert(RK_CPU_PROOF_BYTES == RK_SHA256_BYTES, "a proof is one HMAC-SHA256");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "fields are sent in host byte order");

/* The label prevents replaying a listener's proof as a connector's. */
static void make_proof(uint8_t proof[RK_CPU_PROOF_BYTES], const char label[8],
                       const struct rk_cpu_hello *hello, const uint8_t nonce[RK_CPU_NONCE_BYTES],
                       const uint8_t *id)
{
    uint8_t text[8 + sizeof(*hello) + RK_CPU_NONCE_BYTES];

    memcpy(text, label, 8);
    memcpy(text + 8, hello, sizeof(*hello));
    memcpy(text + 8 + sizeof(*hello), nonce, RK_CPU_NONCE_BYTES);
    rk_hmac_sha256(id, RK_COMM_ID_BYTES, text, sizeof(text), proof);
}

#define LISTENER_LABEL  "listener"
#define CONNECTOR_LABEL "connects"

void rk_cpu_hello_init(struct rk_cpu_hello *hello, int32_t from_rank, int32_t to_rank, int32_t world_size,
                       uint64_t generation, rk_cpu_channel_t channel)
{
    *hello = (struct rk_cpu_hello){.magic = HELLO_MAGIC,
                                   .version = HELLO_VERSION,
                                   .channel = channel,
                                   .from_rank = from_rank,
                                   .to_rank = to_rank,
                                   .world_size = world_size,
                                   .generation = generation};
}

void rk_cpu_prove(uint8_t proof[RK_CPU_PROOF_BYTES], const struct rk_cpu_hello *hello,
                  const struct rk_cpu_challenge *challenge, const uint8_t *id)
{
    make_proof(proof, CONNECTOR_LABEL, hello, challenge->nonce, id);
}

void rk_cpu_acceptor_init(struct rk_cpu_acceptor *acceptor, const uint8_t nonce[RK_CPU_NONCE_BYTES])
{
    *acceptor = (struct rk_cpu_acceptor){.stage = RK_CPU_ACCEPT_HELLO};
    memcpy(acceptor->nonce, nonce, RK_CPU_NONCE_BYTES);
}

size_t rk_cpu_acceptor_wanted(const struct rk_cpu_acceptor *acceptor)
{
    switch (acceptor->stage) {
    case RK_CPU_ACCEPT_HELLO:
        return sizeof(acceptor->in.hello) - acceptor->filled;
    case RK_CPU_ACCEPT_PROOF:
        return sizeof(acceptor->in.proof) - acceptor->filled;
    default:
        return 0;
    }
}

static bool is_taken(const struct rk_cpu_rules *rules, const struct rk_cpu_hello *hello)
{
    return rules->is_taken[(size_t)hello->from_rank * RK_CPU_CHANNEL_COUNT + hello->channel];
}

static rk_cpu_verdict_t judge_hello(const struct rk_cpu_hello *hello, const struct rk_cpu_rules *rules)
{
    if (hello->magic != HELLO_MAGIC || hello->version != HELLO_VERSION ||
        hello->channel >= RK_CPU_CHANNEL_COUNT)
        return RK_CPU_VERDICT_NOT_RANKD;
    if (hello->generation != rules->generation)
        return RK_CPU_VERDICT_GENERATION;
    if (hello->world_size != rules->world_size || hello->to_rank != rules->rank ||
        hello->from_rank <= rules->rank || hello->from_rank >= rules->world_size)
        return RK_CPU_VERDICT_WORLD;
    return is_taken(rules, hello) ? RK_CPU_VERDICT_DUPLICATE : RK_CPU_VERDICT_OK;
}

static size_t answer_hello(struct rk_cpu_acceptor *acceptor, const struct rk_cpu_rules *rules, uint8_t *reply)
{
    struct rk_cpu_challenge challenge = {0};
    rk_cpu_verdict_t verdict = judge_hello(&acceptor->in.hello, rules);

    challenge.verdict = verdict;
    acceptor->stage = RK_CPU_ACCEPT_REFUSED;
    if (verdict == RK_CPU_VERDICT_OK) {
        acceptor->hello = acceptor->in.hello;
        acceptor->stage = RK_CPU_ACCEPT_PROOF;
        memcpy(challenge.nonce, acceptor->nonce, sizeof(challenge.nonce));
        make_proof(challenge.proof, LISTENER_LABEL, &acceptor->hello, acceptor->nonce, rules->id);
    }
    memcpy(reply, &challenge, sizeof(challenge));
    return sizeof(challenge);
}

static size_t answer_proof(struct rk_cpu_acceptor *acceptor, const struct rk_cpu_rules *rules, uint8_t *reply)
{
    uint8_t expected[RK_CPU_PROOF_BYTES];
    uint32_t verdict = RK_CPU_VERDICT_OK;

    make_proof(expected, CONNECTOR_LABEL, &acceptor->hello, acceptor->nonce, rules->id);
    if (!rk_equal_secret(expected, acceptor->in.proof, sizeof(expected)))
        verdict = RK_CPU_VERDICT_PROOF;
    else if (is_taken(rules, &acceptor->hello)) /* another connection of this rank was accepted since HELLO */
        verdict = RK_CPU_VERDICT_DUPLICATE;
    acceptor->stage = verdict == RK_CPU_VERDICT_OK ? RK_CPU_ACCEPT_DONE : RK_CPU_ACCEPT_REFUSED;
    memcpy(reply, &verdict, sizeof(verdict));
    return sizeof(verdict);
}

size_t rk_cpu_acceptor_feed(struct rk_cpu_acceptor *acceptor, const struct rk_cpu_rules *rules,
                            const void *data, size_t bytes, uint8_t reply[RK_CPU_REPLY_BYTES])
{
    size_t wanted = rk_cpu_acceptor_wanted(acceptor);

    RK_ASSERT(bytes <= wanted);
    if (bytes == 0)
        return 0;
    memcpy((uint8_t *)&acceptor->in + acceptor->filled, data, bytes);
    acceptor->filled += bytes;
    if (bytes < wanted)
        return 0;
    acceptor->filled = 0;
    return acceptor->stage == RK_CPU_ACCEPT_HELLO ? answer_hello(acceptor, rules, reply)
                                                  : answer_proof(acceptor, rules, reply);
}

struct rk_status *rk_cpu_verdict_status(uint32_t verdict, const struct rk_cpu_hello *hello)
{
    int32_t to = hello->to_rank;

    switch (verdict) {
    case RK_CPU_VERDICT_OK:
        return NULL;
    case RK_CPU_VERDICT_GENERATION:
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_MESH",
                              "rank %d refuses mesh_generation=%" PRIu64 ": its world has another generation",
                              to, hello->generation);
    case RK_CPU_VERDICT_WORLD:
        return RK_FAIL(RK_FAILED_PRECONDITION, "rank %d refuses rank=%d of world_size=%d", to,
                       hello->from_rank, hello->world_size);
    case RK_CPU_VERDICT_PROOF:
        return RK_FAIL(RK_UNAUTHENTICATED, "rank %d refuses the proof: its world has another id", to);
    case RK_CPU_VERDICT_DUPLICATE:
        return RK_FAIL(RK_ALREADY_EXISTS, "rank %d refuses rank=%d: that rank is connected already", to,
                       hello->from_rank);
    default:
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "rank %d refuses the handshake (verdict %u): it runs another version", to, verdict);
    }
}

struct rk_status *rk_cpu_challenge_check(const struct rk_cpu_challenge *challenge,
                                         const struct rk_cpu_hello *hello, const uint8_t *id)
{
    uint8_t expected[RK_CPU_PROOF_BYTES];

    RK_TRY(rk_cpu_verdict_status(challenge->verdict, hello));
    make_proof(expected, LISTENER_LABEL, hello, challenge->nonce, id);
    if (!rk_equal_secret(expected, challenge->proof, sizeof(expected)))
        return RK_FAIL(
            RK_UNAUTHENTICATED,
            "the listener of rank %d has no valid proof of the world's id; another world may use its address",
            hello->to_rank);
    return NULL;
}
