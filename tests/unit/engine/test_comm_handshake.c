/* The handshake of the CPU net, both sides, without sockets. */
#include "tests/support/test.h"

#include <string.h>

#include "engine/comm/comm_cpu_internal.h"

#define WORLD_SIZE 4

static const uint8_t id[RK_COMM_ID_BYTES] = {1, 2, 3};
static const uint8_t other_id[RK_COMM_ID_BYTES] = {1, 2, 4};
static const uint8_t nonce[RK_CPU_NONCE_BYTES] = {9, 8, 7};

/* One attempt of rank `from` to connect to rank `to`, listening as rank 1 of generation 5 with `id`. */
struct handshake_case {
    const char *label;
    int32_t from, to, world_size;
    uint64_t generation;
    rk_cpu_channel_t channel;
    const uint8_t *id; /* id of the connector; NULL: the listener's */
    uint32_t magic_xor, version_xor;
    bool is_taken, is_taken_late; /* before HELLO, before PROOF */
    rk_cpu_verdict_t verdict;
};

static const struct handshake_case cases[] = {
    {"data", 2, 1, 4, 5, RK_CPU_CHANNEL_DATA, .verdict = RK_CPU_VERDICT_OK},
    {"control", 3, 1, 4, 5, RK_CPU_CHANNEL_CONTROL, .verdict = RK_CPU_VERDICT_OK},
    {"not rankd", 2, 1, 4, 5, .magic_xor = 1, .verdict = RK_CPU_VERDICT_NOT_RANKD},
    {"another version", 2, 1, 4, 5, .version_xor = 2, .verdict = RK_CPU_VERDICT_NOT_RANKD},
    {"unknown channel", 2, 1, 4, 5, RK_CPU_CHANNEL_COUNT, .verdict = RK_CPU_VERDICT_NOT_RANKD},
    {"stale generation", 2, 1, 4, 4, .verdict = RK_CPU_VERDICT_GENERATION},
    {"future generation", 2, 1, 4, 6, .verdict = RK_CPU_VERDICT_GENERATION},
    {"another world size", 2, 1, 3, 5, .verdict = RK_CPU_VERDICT_WORLD},
    {"meant for rank 0", 2, 0, 4, 5, .verdict = RK_CPU_VERDICT_WORLD},
    {"lower rank", 0, 1, 4, 5, .verdict = RK_CPU_VERDICT_WORLD},
    {"itself", 1, 1, 4, 5, .verdict = RK_CPU_VERDICT_WORLD},
    {"rank out of range", 4, 1, 4, 5, .verdict = RK_CPU_VERDICT_WORLD},
    {"negative rank", -1, 1, 4, 5, .verdict = RK_CPU_VERDICT_WORLD},
    {"duplicate", 2, 1, 4, 5, .is_taken = true, .verdict = RK_CPU_VERDICT_DUPLICATE},
    {"two at a time", 2, 1, 4, 5, .is_taken_late = true, .verdict = RK_CPU_VERDICT_DUPLICATE},
    {"wrong id", 2, 1, 4, 5, .id = other_id, .verdict = RK_CPU_VERDICT_PROOF},
};

static rk_cpu_verdict_t verdict_of(const uint8_t *reply)
{
    uint32_t verdict;

    memcpy(&verdict, reply, sizeof(verdict));
    return (rk_cpu_verdict_t)verdict;
}

/* Goal: exactly the valid connectors are admitted, and the others receive the reason. Method: both sides run
 * against each other with messages in pieces of every size. */
static rk_cpu_verdict_t play(const struct handshake_case *c, size_t piece, rk_cpu_accept_stage_t *stage)
{
    bool is_taken[WORLD_SIZE * RK_CPU_CHANNEL_COUNT] = {[2 * RK_CPU_CHANNEL_COUNT] = c->is_taken};
    const struct rk_cpu_rules rules = {
        .rank = 1, .world_size = WORLD_SIZE, .generation = 5, .id = id, .is_taken = is_taken};
    struct rk_cpu_acceptor acceptor;
    struct rk_cpu_challenge challenge;
    struct rk_cpu_hello hello;
    uint8_t reply[RK_CPU_REPLY_BYTES], text[sizeof(hello) + RK_CPU_PROOF_BYTES];
    rk_cpu_verdict_t verdict = RK_CPU_VERDICT_COUNT;
    size_t at = 0, wanted;

    rk_cpu_hello_init(&hello, c->from, c->to, c->world_size, c->generation, c->channel);
    hello.magic ^= c->magic_xor;
    hello.version ^= c->version_xor;
    memset(hello.nonce, 0x5a, sizeof(hello.nonce));
    memcpy(text, &hello, sizeof(hello));
    rk_cpu_acceptor_init(&acceptor, nonce);
    while ((wanted = rk_cpu_acceptor_wanted(&acceptor)) > 0) {
        size_t taken = RK_MIN(wanted, piece);

        if (rk_cpu_acceptor_feed(&acceptor, &rules, text + at, taken, reply) > 0)
            verdict = verdict_of(reply);
        at += taken;
        if (at == sizeof(hello)) {
            memcpy(&challenge, reply, sizeof(challenge));
            rk_cpu_prove(text + sizeof(hello), &hello, &challenge, c->id ? c->id : id);
            is_taken[2 * RK_CPU_CHANNEL_COUNT] = is_taken[2 * RK_CPU_CHANNEL_COUNT] || c->is_taken_late;
        }
    }
    *stage = acceptor.stage;
    return verdict;
}

static void test_acceptor_feed_gives_the_verdict(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        bool is_ok = cases[i].verdict == RK_CPU_VERDICT_OK;

        print_message("%s\n", cases[i].label);
        for (size_t piece = 1; piece <= sizeof(struct rk_cpu_hello); piece++) {
            rk_cpu_accept_stage_t stage;

            assert_int_equal(play(&cases[i], piece, &stage), cases[i].verdict);
            assert_int_equal(stage, is_ok ? RK_CPU_ACCEPT_DONE : RK_CPU_ACCEPT_REFUSED);
        }
    }
}

/* Goal: a listener without the id is detected, and the connector's own bytes sent back are not accepted as
 * proof.
 */
static void test_challenge_check_demands_the_listeners_proof(void **state)
{
    const bool is_taken[WORLD_SIZE * RK_CPU_CHANNEL_COUNT] = {0};
    struct rk_cpu_rules rules = {
        .rank = 1, .world_size = WORLD_SIZE, .generation = 5, .id = id, .is_taken = is_taken};
    struct rk_cpu_acceptor acceptor;
    struct rk_cpu_challenge challenge;
    struct rk_cpu_hello hello;

    (void)state;
    rk_cpu_hello_init(&hello, 2, 1, WORLD_SIZE, 5, RK_CPU_CHANNEL_DATA);
    rk_cpu_acceptor_init(&acceptor, nonce);
    assert_int_equal(rk_cpu_acceptor_feed(&acceptor, &rules, &hello, sizeof(hello), (uint8_t *)&challenge),
                     sizeof(challenge));
    assert_ok(rk_cpu_challenge_check(&challenge, &hello, id));
    assert_fails(rk_cpu_challenge_check(&challenge, &hello, other_id), RK_UNAUTHENTICATED, "rank 1");
    hello.nonce[3] ^= 1; /* an answer to another HELLO */
    assert_fails(rk_cpu_challenge_check(&challenge, &hello, id), RK_UNAUTHENTICATED, "rank 1");
    hello.nonce[3] ^= 1;
    rk_cpu_prove(challenge.proof, &hello, &challenge, id); /* the connector's label, not the listener's */
    assert_fails(rk_cpu_challenge_check(&challenge, &hello, id), RK_UNAUTHENTICATED, "rank 1");
}

/* Goal: every refusal has a distinct message that names the ranks. */
static void test_verdict_status_explains_refusals(void **state)
{
    static const struct {
        uint32_t verdict;
        rk_code_t code;
        const char *text;
    } refusals[] = {
        {RK_CPU_VERDICT_NOT_RANKD, RK_FAILED_PRECONDITION, "verdict 2"},
        {RK_CPU_VERDICT_WORLD, RK_FAILED_PRECONDITION, "rank 1 refuses rank=2 of world_size=4"},
        {RK_CPU_VERDICT_GENERATION, RK_FAILED_PRECONDITION, "rank 1 refuses mesh_generation=5"},
        {RK_CPU_VERDICT_PROOF, RK_UNAUTHENTICATED, "rank 1 refuses the proof"},
        {RK_CPU_VERDICT_DUPLICATE, RK_ALREADY_EXISTS, "rank 1 refuses rank=2"},
        {0, RK_FAILED_PRECONDITION, "verdict 0"},
        {0xffffffff, RK_FAILED_PRECONDITION, "verdict 4294967295"},
    };
    struct rk_cpu_hello hello;

    (void)state;
    rk_cpu_hello_init(&hello, 2, 1, WORLD_SIZE, 5, RK_CPU_CHANNEL_DATA);
    assert_ok(rk_cpu_verdict_status(RK_CPU_VERDICT_OK, &hello));
    for (size_t i = 0; i < RK_ARRAY_LEN(refusals); i++)
        assert_fails(rk_cpu_verdict_status(refusals[i].verdict, &hello), refusals[i].code, refusals[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_acceptor_feed_gives_the_verdict),
        cmocka_unit_test(test_challenge_check_demands_the_listeners_proof),
        cmocka_unit_test(test_verdict_status_explains_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
