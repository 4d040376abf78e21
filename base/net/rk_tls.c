/* The context of TLS connections: the content of the files at the last read. */
#include "base/net/rk_tls.h"

#include <pthread.h>
#include <string.h>

#include <openssl/err.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/net/rk_tls_internal.h"

/* Fast first; a processor without AES takes ChaCha20 where the peer prefers it. */
#define CIPHERS_TLS13 "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define CIPHERS_TLS12 "ECDHE+AESGCM:ECDHE+CHACHA20"
/* 2: keys of 112 bits of security, so RSA from 2,048 bits. */
#define SECURITY_LEVEL  2
#define PEER_CERT_BYTES (32 << 10) /* limit of a peer's certificate chain */
#define CHAIN_DEPTH     4
/* One read of the socket returns several records of 16 KiB. */
#define READ_BUFFER_BYTES (64 << 10)

struct rk_tls {
    pthread_mutex_t lock;
    SSL_CTX *context; /* guarded by lock */
};

static struct rk_status *fail(const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    struct rk_status *st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s", what, reason ? reason : "refused");

    ERR_clear_error();
    return st;
}

/* A client of HTTP/2 offers "h2"; a client that offers only other protocols is refused. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_bytes,
                           const unsigned char *offered, unsigned offered_bytes, void *user)
{
    static const unsigned char http2[] = "\x02h2";
    unsigned char *chosen;

    (void)ssl;
    (void)user;
    if (SSL_select_next_proto(&chosen, out_bytes, http2, sizeof(http2) - 1, offered, offered_bytes) !=
        OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static struct rk_status *add_authorities(SSL_CTX *context, STACK_OF(X509) * authorities)
{
    X509_STORE *store = SSL_CTX_get_cert_store(context);

    for (int i = 0; i < sk_X509_num(authorities); i++) {
        X509 *cert = sk_X509_value(authorities, i);

        if (X509_STORE_add_cert(store, cert) != 1 || SSL_CTX_add_client_CA(context, cert) != 1)
            return fail("the authorities");
    }
    return NULL;
}

static struct rk_status *add_own(SSL_CTX *context, const struct rk_tls_parts *parts)
{
    if (!parts->cert)
        return NULL;
    if (SSL_CTX_use_certificate(context, parts->cert) != 1 ||
        SSL_CTX_use_PrivateKey(context, parts->key) != 1)
        return fail("the certificate"); /* too short a key, for example */
    for (int i = 0; i < sk_X509_num(parts->chain); i++) {
        if (SSL_CTX_add1_chain_cert(context, sk_X509_value(parts->chain, i)) != 1)
            return fail("the certificates after the first");
    }
    return NULL;
}

static struct rk_status *fill_context(SSL_CTX *context, const struct rk_tls_parts *parts,
                                      const struct rk_tls_files *files)
{
    struct rk_status *st = add_authorities(context, parts->authorities);

    if (st)
        return RK_WRAP(st, "%sca '%s'", files->prefix, files->ca);
    st = add_own(context, parts);
    return st ? RK_WRAP(st, "%scert '%s'", files->prefix, files->cert) : NULL;
}

static void set_policy(SSL_CTX *context)
{
    SSL_CTX_set_security_level(context, SECURITY_LEVEL);
    RK_ASSERT(SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1);
    RK_ASSERT(SSL_CTX_set_ciphersuites(context, CIPHERS_TLS13) == 1);
    RK_ASSERT(SSL_CTX_set_cipher_list(context, CIPHERS_TLS12) == 1);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
                                     SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS | SSL_MODE_NO_AUTO_CHAIN);
    SSL_CTX_set_max_cert_list(context, PEER_CERT_BYTES);
    SSL_CTX_set_verify_depth(context, CHAIN_DEPTH);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, READ_BUFFER_BYTES);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
}

static struct rk_status *make_context(SSL_CTX **out, const struct rk_tls_files *files)
{
    struct rk_tls_parts parts = {0};
    struct rk_tls_pem pem;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_tls_pem_read(&pem, files));
    st = rk_tls_parse(&parts, &pem, files);
    rk_tls_pem_fini(&pem);
    if (st)
        return st;
    *out = SSL_CTX_new(TLS_method());
    RK_ASSERT(*out); /* memory */
    set_policy(*out);
    st = fill_context(*out, &parts, files);
    rk_tls_parts_fini(&parts);
    if (st) {
        SSL_CTX_free(*out);
        *out = NULL;
    }
    return st;
}

struct rk_status *rk_tls_create(struct rk_tls **out, const struct rk_tls_files *files)
{
    SSL_CTX *context;

    *out = NULL;
    RK_TRY(make_context(&context, files));
    *out = rk_calloc(1, sizeof(**out));
    pthread_mutex_init(&(*out)->lock, NULL);
    (*out)->context = context;
    return NULL;
}

struct rk_status *rk_tls_reload(struct rk_tls *tls, const struct rk_tls_files *files)
{
    SSL_CTX *context, *old;

    RK_TRY(make_context(&context, files));
    pthread_mutex_lock(&tls->lock);
    old = tls->context;
    tls->context = context;
    pthread_mutex_unlock(&tls->lock);
    SSL_CTX_free(old); /* connections have references of their own */
    return NULL;
}

void rk_tls_destroy(struct rk_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->context);
    pthread_mutex_destroy(&tls->lock);
    rk_free(tls);
}

SSL_CTX *rk_tls_take_context(struct rk_tls *tls)
{
    SSL_CTX *context;

    pthread_mutex_lock(&tls->lock);
    context = tls->context;
    SSL_CTX_up_ref(context);
    pthread_mutex_unlock(&tls->lock);
    return context;
}

int64_t rk_tls_expires_s(struct rk_tls *tls)
{
    SSL_CTX *context = rk_tls_take_context(tls);
    const X509 *cert = SSL_CTX_get0_certificate(context);
    struct tm tm = {0};
    int64_t expires_s = INT64_MAX;

    if (cert && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) == 1)
        expires_s = timegm(&tm);
    SSL_CTX_free(context);
    return expires_s;
}
