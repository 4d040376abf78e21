#include "base/net/rk_certs.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define CURVE           "P-256"
#define SERIAL_BITS     127 /* positive, and always of 16 bytes */
#define COMMON_NAME_MAX 64

/* --- names --- */

/* libcrypto also takes blanks and signs in an address. */
static bool is_address(const char *name)
{
    uint8_t discard[16];

    return inet_pton(AF_INET, name, discard) == 1 || inet_pton(AF_INET6, name, discard) == 1;
}

/* Letters, digits, "-" and "_" between dots; "*." may precede. */
static bool is_dns_name(const char *name)
{
    if (name[0] == '*' && name[1] == '.')
        name += 2;
    for (const char *c = name; *c; c++) {
        bool is_dot = *c == '.';

        if (!is_dot && !isalnum((unsigned char)*c) && *c != '-' && *c != '_')
            return false;
        if (is_dot && (c == name || c[1] == '.'))
            return false;
    }
    return *name != '\0' && *name != '-'; /* which a program would take for an option */
}

static bool is_uri(const char *name)
{
    const char *rest = strstr(name, "://");

    for (const char *c = name; *c; c++) {
        if (*c <= ' ' || *c > '~')
            return false;
    }
    return rest && rest != name && rest[3] != '\0';
}

static struct rk_status *add_name(GENERAL_NAMES *names, const char *name)
{
    int type = is_address(name) ? GEN_IPADD : is_uri(name) ? GEN_URI : is_dns_name(name) ? GEN_DNS : -1;
    GENERAL_NAME *made = NULL;

    if (type >= 0 && strlen(name) <= RK_CERT_NAME_BYTES)
        made = a2i_GENERAL_NAME(NULL, NULL, NULL, type, name, 0);
    ERR_clear_error();
    if (!made)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "name '%s': expected a host name, an address or a URI of at most %d characters", name,
                       RK_CERT_NAME_BYTES);
    RK_ASSERT(sk_GENERAL_NAME_push(names, made) > 0);
    return NULL;
}

static struct rk_status *set_names(X509 *cert, const struct rk_cert_spec *spec)
{
    GENERAL_NAMES *names = sk_GENERAL_NAME_new_null();
    struct rk_status *st = NULL;

    for (int32_t i = 0; i < spec->num_names && !st; i++)
        st = add_name(names, spec->names[i]);
    if (!st && spec->num_names > 0)
        RK_ASSERT(X509_add1_ext_i2d(cert, NID_subject_alt_name, names, 0, X509V3_ADD_DEFAULT) == 1);
    GENERAL_NAMES_free(names);
    return st;
}

static struct rk_status *set_subject(X509 *cert, const char *common_name)
{
    X509_NAME *subject = X509_get_subject_name(cert);
    size_t bytes = strlen(common_name);

    for (size_t i = 0; i < bytes; i++) {
        if (common_name[i] < ' ' || common_name[i] > '~')
            bytes = COMMON_NAME_MAX + 1;
    }
    if (bytes == 0 || bytes > COMMON_NAME_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "common name: expected 1 to %d printable ASCII characters",
                       COMMON_NAME_MAX);
    RK_ASSERT(X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8,
                                         (const unsigned char *)common_name, -1, -1, 0) == 1);
    return NULL;
}

/* --- the rest --- */

static void add_extensions(X509 *cert, X509 *issuer, rk_cert_use_t use)
{
    static const struct {
        int nid;
        const char *value[RK_CERT_CLIENT + 1]; /* by use; NULL: none */
    } rows[] = {
        {NID_basic_constraints, {"critical,CA:TRUE,pathlen:0", "critical,CA:FALSE", "critical,CA:FALSE"}},
        {NID_key_usage,
         {"critical,keyCertSign,cRLSign", "critical,digitalSignature", "critical,digitalSignature"}},
        {NID_ext_key_usage, {NULL, "serverAuth,clientAuth", "clientAuth"}},
        {NID_subject_key_identifier, {"hash", "hash", "hash"}},
        {NID_authority_key_identifier, {"keyid", "keyid", "keyid"}},
    };
    X509V3_CTX context;

    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        X509_EXTENSION *extension;

        if (!rows[i].value[use])
            continue;
        extension = X509V3_EXT_conf_nid(NULL, &context, rows[i].nid, rows[i].value[use]);
        RK_ASSERT(extension && X509_add_ext(cert, extension, -1) == 1);
        X509_EXTENSION_free(extension);
    }
}

static struct rk_status *fill(X509 *cert, EVP_PKEY *key, const struct rk_cert_spec *spec, X509 *issuer)
{
    BIGNUM *serial = BN_new();

    RK_ASSERT(serial && BN_rand(serial, SERIAL_BITS, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1);
    RK_ASSERT(BN_to_ASN1_INTEGER(serial, X509_get_serialNumber(cert)));
    BN_free(serial);
    RK_TRY(set_subject(cert, spec->common_name));
    RK_ASSERT(X509_set_version(cert, X509_VERSION_3) == 1);
    RK_ASSERT(X509_time_adj_ex(X509_getm_notBefore(cert), 0, 0, &(time_t){(time_t)spec->from_s}));
    RK_ASSERT(X509_time_adj_ex(X509_getm_notAfter(cert), 0, 0, &(time_t){(time_t)spec->until_s}));
    RK_ASSERT(X509_set_pubkey(cert, key) == 1);
    RK_ASSERT(X509_set_issuer_name(cert, X509_get_subject_name(issuer)) == 1);
    add_extensions(cert, issuer, spec->use);
    return set_names(cert, spec);
}

static char *take_text(BIO *bio)
{
    char *data;
    long bytes = BIO_get_mem_data(bio, &data);
    char *text = rk_strndup(data, (size_t)bytes);

    explicit_bzero(data, (size_t)bytes);
    BIO_free(bio);
    return text;
}

static void write_pem(struct rk_cert *out, X509 *cert, EVP_PKEY *key)
{
    BIO *bio = BIO_new(BIO_s_mem());

    RK_ASSERT(bio && PEM_write_bio_X509(bio, cert) == 1);
    out->cert = take_text(bio);
    bio = BIO_new(BIO_s_mem());
    RK_ASSERT(bio && PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) == 1);
    out->key = take_text(bio);
}

static struct rk_status *read_authority(X509 **cert, EVP_PKEY **key, const struct rk_cert *authority)
{
    BIO *cert_bio = BIO_new_mem_buf(authority->cert, -1), *key_bio = BIO_new_mem_buf(authority->key, -1);
    bool is_ok;

    *cert = PEM_read_bio_X509(cert_bio, NULL, NULL, NULL);
    *key = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, (void *)"");
    is_ok = *cert && *key && X509_check_private_key(*cert, *key) == 1 && X509_check_ca(*cert) == 1;
    BIO_free(cert_bio);
    BIO_free(key_bio);
    ERR_clear_error();
    return is_ok ? NULL
                 : RK_FAIL(RK_INVALID_ARGUMENT, "not the certificate of an authority with its private key");
}

struct rk_status *rk_cert_make(struct rk_cert *out, const struct rk_cert_spec *spec,
                               const struct rk_cert *authority)
{
    EVP_PKEY *key = NULL, *signer = NULL;
    X509 *cert = NULL, *issuer = NULL;
    struct rk_status *st = NULL;

    *out = (struct rk_cert){0};
    if (authority)
        RK_TRY_GOTO(st, read_authority(&issuer, &signer, authority), out);
    key = EVP_EC_gen(CURVE);
    cert = X509_new();
    RK_ASSERT(key && cert);
    RK_TRY_GOTO(st, fill(cert, key, spec, issuer ? issuer : cert), out);
    RK_ASSERT(X509_sign(cert, signer ? signer : key, EVP_sha256()) > 0);
    write_pem(out, cert, key);
out:
    X509_free(cert);
    X509_free(issuer);
    EVP_PKEY_free(key);
    EVP_PKEY_free(signer);
    return st;
}

void rk_cert_fini(struct rk_cert *cert)
{
    if (cert->key)
        explicit_bzero(cert->key, strlen(cert->key));
    rk_free(cert->cert);
    rk_free(cert->key);
    *cert = (struct rk_cert){0};
}
