/* Files of certificates and keys: read, parsed, and checked before use. */
#include "base/net/rk_tls_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define FILE_BYTES_MAX (1 << 20) /* a distribution's list of authorities has a fifth of that */
#define NAME_BYTES_MAX 256
#define NAMES_MAX      64 /* of a certificate; further ones are ignored */

/* --- files --- */

/* Group and others must not be able to read the key. Links are followed, because containers mount keys as
 * links.
 */
static struct rk_status *check_file(int fd, bool is_secret)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return RK_FAIL(RK_INTERNAL, "%s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return RK_FAIL(RK_INVALID_ARGUMENT, "not a regular file");
    if (info.st_size > FILE_BYTES_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the file has %lld bytes, expected at most %d",
                       (long long)info.st_size, FILE_BYTES_MAX);
    if (!is_secret)
        return NULL;
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return RK_FAIL(RK_PERMISSION_DENIED, "owned by user %u, expected user %u or root",
                       (unsigned)info.st_uid, (unsigned)geteuid());
    if (info.st_mode & 077)
        return RK_FAIL(RK_PERMISSION_DENIED, "readable by group or others (mode %04o); expected 0600 or 0400",
                       (unsigned)(info.st_mode & 07777));
    return NULL;
}

static struct rk_status *read_text(char **out, int fd, bool is_secret)
{
    struct rk_status *st = check_file(fd, is_secret);
    size_t bytes = 0;
    ssize_t got = 1;
    char *text;

    if (st)
        return st;
    text = rk_malloc(FILE_BYTES_MAX + 1);
    while (got > 0 && bytes < FILE_BYTES_MAX) {
        got = read(fd, text + bytes, FILE_BYTES_MAX - bytes);
        bytes += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        st = RK_FAIL(RK_INTERNAL, "%s", strerror(errno));
    else
        *out = rk_strndup(text, bytes);
    explicit_bzero(text, bytes);
    rk_free(text);
    return st;
}

static struct rk_status *read_file(char **out, const struct rk_tls_files *files, const char *what,
                                   const char *path, bool is_secret)
{
    struct rk_status *st = NULL;
    int fd;

    if (!path)
        return NULL;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        st = RK_FAIL(errno == ENOENT   ? RK_NOT_FOUND
                     : errno == EACCES ? RK_PERMISSION_DENIED
                                       : RK_INVALID_ARGUMENT,
                     "%s", strerror(errno));
    if (!st)
        st = read_text(out, fd, is_secret);
    if (fd >= 0)
        close(fd);
    return st ? RK_WRAP(st, "%s%s '%s'", files->prefix, what, path) : NULL;
}

void rk_tls_pem_fini(struct rk_tls_pem *pem)
{
    if (pem->key)
        explicit_bzero(pem->key, strlen(pem->key));
    rk_free(pem->cert);
    rk_free(pem->key);
    rk_free(pem->ca);
    *pem = (struct rk_tls_pem){0};
}

/* --- certificates --- */

static int64_t count(const char *text, const char *part)
{
    int64_t found = 0;

    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        found++;
    return found;
}

/* A file that is still being written may be truncated: a block then has no end, or does not decode. */
static struct rk_status *parse_certificates(STACK_OF(X509) * *out, const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    int64_t expected = count(text, "-----BEGIN ");
    int64_t found = 0;
    X509 *cert;

    *out = sk_X509_new_null();
    while ((cert = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        sk_X509_push(*out, cert);
        found++;
    }
    BIO_free(bio);
    ERR_clear_error();
    if (found > 0 && found == expected)
        return NULL;
    sk_X509_pop_free(*out, X509_free);
    *out = NULL;
    if (expected == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "no certificate, expected PEM: -----BEGIN CERTIFICATE-----");
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "block %lld of %lld is not a whole certificate; is the file still being written?",
                   (long long)found + 1, (long long)expected);
}

static int refuse_passphrase(char *buffer, int bytes, int is_writing, void *user)
{
    (void)buffer;
    (void)bytes;
    (void)is_writing;
    *(bool *)user = true;
    return -1;
}

static struct rk_status *parse_key(EVP_PKEY **out, const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    bool is_encrypted = false;

    *out = PEM_read_bio_PrivateKey(bio, NULL, refuse_passphrase, &is_encrypted);
    BIO_free(bio);
    ERR_clear_error();
    if (*out)
        return NULL;
    if (is_encrypted)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the key has a passphrase, expected one without");
    if (!strstr(text, "-----BEGIN "))
        return RK_FAIL(RK_INVALID_ARGUMENT, "no key, expected PEM: -----BEGIN PRIVATE KEY-----");
    return RK_FAIL(RK_INVALID_ARGUMENT, "not a whole private key; is the file still being written?");
}

void rk_tls_format_date(char out[RK_TLS_DATE_BYTES], const ASN1_TIME *date)
{
    struct tm tm = {0};

    snprintf(out, RK_TLS_DATE_BYTES, "an unknown date");
    if (ASN1_TIME_to_tm(date, &tm) == 1)
        strftime(out, RK_TLS_DATE_BYTES, "%Y-%m-%d %H:%M UTC", &tm);
}

static struct rk_status *check_dates(const X509 *cert)
{
    char date[RK_TLS_DATE_BYTES];

    if (X509_cmp_current_time(X509_get0_notBefore(cert)) > 0) {
        rk_tls_format_date(date, X509_get0_notBefore(cert));
        return RK_FAIL(RK_INVALID_ARGUMENT, "the certificate is not valid before %s", date);
    }
    if (X509_cmp_current_time(X509_get0_notAfter(cert)) < 0) {
        rk_tls_format_date(date, X509_get0_notAfter(cert));
        return RK_FAIL(RK_INVALID_ARGUMENT, "the certificate expired on %s", date);
    }
    return NULL;
}

static struct rk_status *parse_own(struct rk_tls_parts *out, const struct rk_tls_pem *pem,
                                   const struct rk_tls_files *files)
{
    struct rk_status *st = parse_certificates(&out->chain, pem->cert);

    if (!st) {
        out->cert = sk_X509_shift(out->chain);
        st = check_dates(out->cert);
    }
    if (st)
        return RK_WRAP(st, "%scert '%s'", files->prefix, files->cert);
    st = parse_key(&out->key, pem->key);
    if (!st && X509_check_private_key(out->cert, out->key) != 1)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "the key does not belong to the certificate in '%s'", files->cert);
    ERR_clear_error();
    return st ? RK_WRAP(st, "%skey '%s'", files->prefix, files->key) : NULL;
}

struct rk_status *rk_tls_parse(struct rk_tls_parts *out, const struct rk_tls_pem *pem,
                               const struct rk_tls_files *files)
{
    struct rk_status *st = NULL;

    *out = (struct rk_tls_parts){0};
    if (pem->cert)
        st = parse_own(out, pem, files);
    if (!st && pem->ca) {
        st = parse_certificates(&out->authorities, pem->ca);
        st = st ? RK_WRAP(st, "%sca '%s'", files->prefix, files->ca) : NULL;
    }
    if (st)
        rk_tls_parts_fini(out);
    return st;
}

void rk_tls_parts_fini(struct rk_tls_parts *parts)
{
    X509_free(parts->cert);
    sk_X509_pop_free(parts->chain, X509_free);
    EVP_PKEY_free(parts->key);
    sk_X509_pop_free(parts->authorities, X509_free);
    *parts = (struct rk_tls_parts){0};
}

struct rk_status *rk_tls_pem_read(struct rk_tls_pem *out, const struct rk_tls_files *files)
{
    struct rk_tls_parts parts;
    struct rk_status *st;

    *out = (struct rk_tls_pem){0};
    if (!files->cert != !files->key)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s%s: expected together with %s%s", files->prefix,
                       files->cert ? "cert" : "key", files->prefix, files->cert ? "key" : "cert");
    st = read_file(&out->cert, files, "cert", files->cert, false);
    if (!st)
        st = read_file(&out->key, files, "key", files->key, true);
    if (!st)
        st = read_file(&out->ca, files, "ca", files->ca, false);
    if (!st)
        st = rk_tls_parse(&parts, out, files);
    if (st)
        rk_tls_pem_fini(out);
    else
        rk_tls_parts_fini(&parts);
    return st;
}

/* --- names --- */

/* Text of a certificate is untrusted: control characters and line breaks are replaced. */
static void add_name(struct rk_str *out, const char *separator, const unsigned char *text, int bytes)
{
    if (bytes <= 0 || bytes > NAME_BYTES_MAX)
        return;
    for (int i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return;
    }
    if (out->bytes > 0)
        rk_str_append(out, separator);
    rk_str_append_bytes(out, (const char *)text, (size_t)bytes);
}

static void add_general_name(struct rk_str *out, const char *separator, const GENERAL_NAME *name)
{
    int type, bytes;
    const ASN1_STRING *value = GENERAL_NAME_get0_value(name, &type);
    char address[INET6_ADDRSTRLEN] = "";

    if (type == GEN_DNS || type == GEN_URI || type == GEN_EMAIL) {
        add_name(out, separator, ASN1_STRING_get0_data(value), ASN1_STRING_length(value));
    } else if (type == GEN_IPADD) {
        bytes = ASN1_STRING_length(value);
        if (bytes == 4 || bytes == 16)
            inet_ntop(bytes == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(value), address,
                      sizeof(address));
        add_name(out, separator, (const unsigned char *)address, (int)strlen(address));
    }
}

static void add_common_name(struct rk_str *out, const char *separator, const X509 *cert)
{
    const X509_NAME *subject = X509_get_subject_name(cert);
    int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    const ASN1_STRING *value;

    if (at < 0)
        return;
    value = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    add_name(out, separator, ASN1_STRING_get0_data(value), ASN1_STRING_length(value));
}

char *rk_tls_names_of(X509 *cert, const char *separator)
{
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    struct rk_str out = {0};

    for (int i = 0; i < RK_MIN(sk_GENERAL_NAME_num(names), NAMES_MAX); i++)
        add_general_name(&out, separator, sk_GENERAL_NAME_value(names, i));
    if (!names)
        add_common_name(&out, separator, cert);
    GENERAL_NAMES_free(names);
    ERR_clear_error();
    rk_str_append(&out, "");
    return rk_str_take(&out);
}
