#include "base/rk_hash.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#define BLOCK_BYTES 64

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, int bits)
{
    return x >> bits | x << (32 - bits);
}

static uint32_t load_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void expand_schedule(uint32_t w[64], const uint8_t *block)
{
    for (int t = 0; t < 16; t++)
        w[t] = load_be32(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotate_right(w[t - 15], 7) ^ rotate_right(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t s1 = rotate_right(w[t - 2], 17) ^ rotate_right(w[t - 2], 19) ^ w[t - 2] >> 10;

        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
}

/* The letters are those of FIPS 180-4, 6.2.2. */
static void compress(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64];
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];

    expand_schedule(w, block);
    for (int t = 0; t < 64; t++) {
        uint32_t sum1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        uint32_t choose = (e & f) ^ (~e & g);
        uint32_t t1 = h + sum1 + choose + round_constants[t] + w[t];
        uint32_t sum0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        uint32_t majority = (a & b) ^ (a & c) ^ (b & c);

        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + sum0 + majority;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void rk_sha256_init(struct rk_sha256 *sha)
{
    *sha = (struct rk_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                        0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void rk_sha256_update(struct rk_sha256 *sha, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t filled = sha->total_bytes % BLOCK_BYTES;

    sha->total_bytes += bytes;
    while (bytes > 0) {
        size_t step = BLOCK_BYTES - filled;

        step = step < bytes ? step : bytes;
        memcpy(sha->block + filled, p, step);
        filled = (filled + step) % BLOCK_BYTES;
        p += step;
        bytes -= step;
        if (filled == 0)
            compress(sha->state, sha->block);
    }
}

void rk_sha256_final(struct rk_sha256 *sha, uint8_t out[RK_SHA256_BYTES])
{
    uint64_t total_bits = sha->total_bytes * 8;
    size_t filled = sha->total_bytes % BLOCK_BYTES;
    size_t pad_bytes = (filled < 56 ? 56 : 56 + BLOCK_BYTES) - filled;
    uint8_t tail[BLOCK_BYTES + 8] = {0x80};

    for (int i = 0; i < 8; i++)
        tail[pad_bytes + (size_t)i] = (uint8_t)(total_bits >> (56 - 8 * i));
    rk_sha256_update(sha, tail, pad_bytes + 8);
    for (int i = 0; i < RK_SHA256_BYTES; i++)
        out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void rk_sha256_of(const void *data, size_t bytes, uint8_t out[RK_SHA256_BYTES])
{
    struct rk_sha256 sha;

    rk_sha256_init(&sha);
    rk_sha256_update(&sha, data, bytes);
    rk_sha256_final(&sha, out);
}

void rk_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t data_bytes,
                    uint8_t out[RK_SHA256_BYTES])
{
    uint8_t block[BLOCK_BYTES] = {0}, pad[BLOCK_BYTES], inner[RK_SHA256_BYTES];
    struct rk_sha256 sha;

    if (key_bytes > BLOCK_BYTES)
        rk_sha256_of(key, key_bytes, block);
    else if (key_bytes > 0)
        memcpy(block, key, key_bytes);
    for (int i = 0; i < BLOCK_BYTES; i++)
        pad[i] = block[i] ^ 0x36;
    rk_sha256_init(&sha);
    rk_sha256_update(&sha, pad, BLOCK_BYTES);
    rk_sha256_update(&sha, data, data_bytes);
    rk_sha256_final(&sha, inner);
    for (int i = 0; i < BLOCK_BYTES; i++)
        pad[i] = block[i] ^ 0x5c;
    rk_sha256_init(&sha);
    rk_sha256_update(&sha, pad, BLOCK_BYTES);
    rk_sha256_update(&sha, inner, sizeof(inner));
    rk_sha256_final(&sha, out);
}

struct rk_status *rk_random_bytes(void *out, size_t bytes)
{
    uint8_t *p = out;

    while (bytes > 0) {
        ssize_t got = getrandom(p, bytes, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return RK_FAIL(RK_INTERNAL, "getrandom of %zu bytes: %s", bytes, strerror(errno));
        p += got;
        bytes -= (size_t)got;
    }
    return NULL;
}

char *rk_hex(const void *data, size_t bytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;

    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * bytes] = '\0';
    return out;
}

bool rk_equal_secret(const void *a, const void *b, size_t bytes)
{
    const volatile uint8_t *pa = a, *pb = b;
    uint8_t difference = 0;

    for (size_t i = 0; i < bytes; i++)
        difference |= pa[i] ^ pb[i];
    return difference == 0;
}
