#include "base/rk_hash.h"

#include <string.h>

#include "base/rk_random.h"
#include "base/rk_rng.h"
#include "tests/support/test.h"

static void assert_digest(const uint8_t digest[RK_SHA256_BYTES], const char *expected)
{
    char hex[2 * RK_SHA256_BYTES + 1];

    assert_string_equal(rk_hex(digest, RK_SHA256_BYTES, hex), expected);
}

/* Vectors: FIPS 180-4 examples, and the empty message. */
static void test_sha256_known_answers(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    uint8_t digest[RK_SHA256_BYTES];
    struct rk_sha256 sha;
    char thousand[1000];

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        rk_sha256_of(cases[i].text, strlen(cases[i].text), digest);
        assert_digest(digest, cases[i].expected);
    }
    memset(thousand, 'a', sizeof(thousand));
    rk_sha256_init(&sha);
    for (int i = 0; i < 1000; i++)
        rk_sha256_update(&sha, thousand, sizeof(thousand));
    rk_sha256_final(&sha, digest);
    assert_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* Goal: the result does not depend on how a message is split into updates, for every length around the
 * padding boundaries. */
static void test_sha256_pieces_equal_whole(void **state)
{
    uint8_t data[200], whole[RK_SHA256_BYTES], pieces[RK_SHA256_BYTES];
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 1);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)rk_rng_next_u32(&rng);
    for (size_t bytes = 0; bytes <= sizeof(data); bytes++) {
        struct rk_sha256 sha;
        size_t cut = (size_t)rk_rng_next_below(&rng, (int64_t)bytes + 1);

        rk_sha256_of(data, bytes, whole);
        rk_sha256_init(&sha);
        rk_sha256_update(&sha, data, cut);
        rk_sha256_update(&sha, data + cut, bytes - cut);
        rk_sha256_final(&sha, pieces);
        assert_memory_equal(whole, pieces, sizeof(whole));
    }
}

/* Vectors: RFC 4231 test cases 1, 2, 3 and 6 (a key longer than the block). */
static void test_hmac_sha256_known_answers(void **state)
{
    uint8_t digest[RK_SHA256_BYTES], key[131], data[50];

    (void)state;
    memset(key, 0x0b, 20);
    rk_hmac_sha256(key, 20, "Hi There", 8, digest);
    assert_digest(digest, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    rk_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest);
    assert_digest(digest, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    memset(data, 0xdd, sizeof(data));
    rk_hmac_sha256(key, 20, data, sizeof(data), digest);
    assert_digest(digest, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    rk_hmac_sha256(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54, digest);
    assert_digest(digest, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_random_bytes_differ_between_calls(void **state)
{
    uint8_t a[32] = {0}, b[32] = {0};

    (void)state;
    assert_ok(rk_random_bytes(a, sizeof(a)));
    assert_ok(rk_random_bytes(b, sizeof(b)));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_ok(rk_random_bytes(a, 0));
}

static void test_hex_and_equal_secret_table(void **state)
{
    char hex[9];

    (void)state;
    assert_string_equal(rk_hex("\x00\x9f\xff\x10", 4, hex), "009fff10");
    assert_string_equal(rk_hex("", 0, hex), "");
    assert_true(rk_equal_secret("token", "token", 5));
    assert_true(rk_equal_secret("a", "b", 0));
    assert_false(rk_equal_secret("token", "tokeN", 5));
    assert_false(rk_equal_secret("token", "Token", 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256_known_answers),
        cmocka_unit_test(test_sha256_pieces_equal_whole),
        cmocka_unit_test(test_hmac_sha256_known_answers),
        cmocka_unit_test(test_random_bytes_differ_between_calls),
        cmocka_unit_test(test_hex_and_equal_secret_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
