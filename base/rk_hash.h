/* SHA-256 and HMAC-SHA-256 (FIPS 180-4, RFC 2104) of libcrypto, constant-time comparison. */
#ifndef RK_HASH_H
#define RK_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

#define RK_SHA256_BYTES 32

struct rk_sha256 {
    void *context; /* of libcrypto, from rk_sha256_init to rk_sha256_final, which must follow */
};

void rk_sha256_init(struct rk_sha256 *sha);
void rk_sha256_update(struct rk_sha256 *sha, const void *data, size_t bytes);
void rk_sha256_final(struct rk_sha256 *sha, uint8_t out[RK_SHA256_BYTES]);
void rk_sha256_of(const void *data, size_t bytes, uint8_t out[RK_SHA256_BYTES]);
void rk_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t data_bytes,
                    uint8_t out[RK_SHA256_BYTES]);
/* Equal without a data-dependent early exit. */
bool rk_equal_secret(const void *a, const void *b, size_t bytes);

RK_END_DECLS

#endif
