#include "base/rk_hash.h"

#include <limits.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/rk_assert.h"

/* libcrypto fails here only when memory is exhausted, which aborts as in rk_alloc.c. */
void rk_sha256_init(struct rk_sha256 *sha)
{
    sha->context = EVP_MD_CTX_new();
    RK_ASSERT(sha->context && EVP_DigestInit_ex(sha->context, EVP_sha256(), NULL) == 1);
}

void rk_sha256_update(struct rk_sha256 *sha, const void *data, size_t bytes)
{
    RK_ASSERT(EVP_DigestUpdate(sha->context, data, bytes) == 1);
}

void rk_sha256_final(struct rk_sha256 *sha, uint8_t out[RK_SHA256_BYTES])
{
    RK_ASSERT(EVP_DigestFinal_ex(sha->context, out, NULL) == 1);
    EVP_MD_CTX_free(sha->context);
    sha->context = NULL;
}

void rk_sha256_of(const void *data, size_t bytes, uint8_t out[RK_SHA256_BYTES])
{
    RK_ASSERT(EVP_Digest(data, bytes, out, NULL, EVP_sha256(), NULL) == 1);
}

void rk_hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t data_bytes,
                    uint8_t out[RK_SHA256_BYTES])
{
    RK_ASSERT(key_bytes <= INT_MAX);
    RK_ASSERT(HMAC(EVP_sha256(), key ? key : "", (int)key_bytes, data, data_bytes, out, NULL) != NULL);
}

bool rk_equal_secret(const void *a, const void *b, size_t bytes)
{
    return CRYPTO_memcmp(a, b, bytes) == 0;
}
