/* One TLS connection: the handshake, the data, and errors. */
#include "base/net/rk_tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/net/rk_tls_internal.h"

#define ERROR_BYTES 320

struct rk_tls_conn {
    SSL *ssl;
    int fd;
    bool is_server, is_drained, has_failed, has_closed;
    char host[256];
    char verify_error[ERROR_BYTES]; /* problem of the peer's certificate */
    char error[ERROR_BYTES];
};

/* --- the socket: never blocks, never raises a signal --- */

static int bio_write(BIO *bio, const char *data, int bytes)
{
    const struct rk_tls_conn *conn = BIO_get_data(bio);
    ssize_t sent;

    do
        sent = send(conn->fd, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    BIO_clear_retry_flags(bio);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_write(bio);
    return (int)sent;
}

static int bio_read(BIO *bio, char *data, int bytes)
{
    const struct rk_tls_conn *conn = BIO_get_data(bio);
    ssize_t got;

    do
        got = recv(conn->fd, data, (size_t)bytes, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    BIO_clear_retry_flags(bio);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    if (got == 0)
        BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return (int)got;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    if (command == BIO_CTRL_EOF)
        return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_method;

static void make_bio_method(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "rankd");
    RK_ASSERT(bio_method);
    BIO_meth_set_write(bio_method, bio_write);
    BIO_meth_set_read(bio_method, bio_read);
    BIO_meth_set_ctrl(bio_method, bio_control);
}

/* --- problems of a certificate --- */

static void describe_names(struct rk_tls_conn *conn, X509 *cert)
{
    char *names = rk_tls_names_of(cert, ", ");
    bool has_alternative_names = X509_get_ext_by_NID(cert, NID_subject_alt_name, -1) >= 0;

    if (has_alternative_names)
        snprintf(conn->verify_error, sizeof(conn->verify_error),
                 "its certificate is for %.160s, not for %.80s", *names ? names : "no name", conn->host);
    else
        snprintf(
            conn->verify_error, sizeof(conn->verify_error),
            "its certificate has no subject alternative name, only the common name '%.60s', which does not "
            "count; issue one with subjectAltName %.80s",
            names, conn->host);
    rk_free(names);
}

static void describe_issuer(struct rk_tls_conn *conn, X509 *cert)
{
    char issuer[128] = "";

    X509_NAME_get_text_by_NID(X509_get_issuer_name(cert), NID_commonName, issuer, sizeof(issuer));
    for (char *c = issuer; *c; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    snprintf(conn->verify_error, sizeof(conn->verify_error),
             "its certificate is signed by '%s', which is not one of the authorities that are trusted here",
             issuer);
}

static void describe(struct rk_tls_conn *conn, int error, X509 *cert)
{
    char date[RK_TLS_DATE_BYTES];

    switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        rk_tls_format_date(date, X509_get0_notAfter(cert));
        snprintf(conn->verify_error, sizeof(conn->verify_error), "its certificate expired on %s", date);
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        rk_tls_format_date(date, X509_get0_notBefore(cert));
        snprintf(conn->verify_error, sizeof(conn->verify_error), "its certificate is not valid before %s",
                 date);
        break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        describe_names(conn, cert);
        break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        describe_issuer(conn, cert);
        break;
    case X509_V_ERR_INVALID_PURPOSE:
        snprintf(conn->verify_error, sizeof(conn->verify_error), "its certificate is not for a %s",
                 conn->is_server ? "client" : "server");
        break;
    default:
        snprintf(conn->verify_error, sizeof(conn->verify_error), "its certificate is refused: %s",
                 X509_verify_cert_error_string(error));
    }
}

static int on_verify(int is_ok, X509_STORE_CTX *store)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct rk_tls_conn *conn = SSL_get_app_data(ssl);
    X509 *cert = X509_STORE_CTX_get_current_cert(store);

    if (!is_ok && !conn->verify_error[0])
        describe(conn, X509_STORE_CTX_get_error(store), cert ? cert : X509_STORE_CTX_get0_cert(store));
    return is_ok;
}

/* --- begin and end --- */

static struct rk_tls_conn *create(struct rk_tls *tls, int fd, bool is_server)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct rk_tls_conn *conn = rk_calloc(1, sizeof(*conn));
    SSL_CTX *context = rk_tls_take_context(tls);
    BIO *bio;

    pthread_once(&once, make_bio_method);
    conn->fd = fd;
    conn->is_server = is_server;
    conn->ssl = SSL_new(context);
    bio = BIO_new(bio_method);
    RK_ASSERT(conn->ssl && bio); /* memory */
    SSL_CTX_free(context);
    BIO_set_data(bio, conn);
    BIO_set_init(bio, 1);
    SSL_set_bio(conn->ssl, bio, bio);
    SSL_set_app_data(conn->ssl, conn);
    if (is_server)
        SSL_set_accept_state(conn->ssl);
    else
        SSL_set_connect_state(conn->ssl);
    return conn;
}

struct rk_tls_conn *rk_tls_accept(struct rk_tls *tls, int fd, rk_tls_demand_t demand)
{
    static const int modes[] = {[RK_TLS_PEER_ANY] = SSL_VERIFY_NONE,
                                [RK_TLS_PEER_OPTIONAL] = SSL_VERIFY_PEER,
                                [RK_TLS_PEER_REQUIRED] = SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT};
    struct rk_tls_conn *conn = create(tls, fd, true);

    SSL_set_verify(conn->ssl, modes[demand], on_verify);
    return conn;
}

static bool is_address(const char *host)
{
    uint8_t discard[16];

    return inet_pton(AF_INET, host, discard) == 1 || inet_pton(AF_INET6, host, discard) == 1;
}

static void expect_host(struct rk_tls_conn *conn, const char *host)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(conn->ssl);

    snprintf(conn->host, sizeof(conn->host), "%s", host);
    SSL_set_verify(conn->ssl, SSL_VERIFY_PEER, on_verify);
    if (is_address(host)) {
        RK_ASSERT(X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1);
        return;
    }
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    /* "invalid" matches no certificate: a host that is not a valid name is refused. */
    if (X509_VERIFY_PARAM_set1_host(param, host, 0) != 1 || SSL_set_tlsext_host_name(conn->ssl, host) != 1)
        RK_ASSERT(X509_VERIFY_PARAM_set1_host(param, "invalid", 0) == 1);
}

struct rk_tls_conn *rk_tls_connect(struct rk_tls *tls, int fd, const char *host, bool speaks_http2)
{
    static const unsigned char http2[] = "\x02h2";
    struct rk_tls_conn *conn = create(tls, fd, false);

    if (host)
        expect_host(conn, host);
    else
        SSL_set_verify(conn->ssl, SSL_VERIFY_NONE, NULL);
    if (speaks_http2)
        RK_ASSERT(SSL_set_alpn_protos(conn->ssl, http2, sizeof(http2) - 1) == 0);
    ERR_clear_error();
    return conn;
}

void rk_tls_conn_destroy(struct rk_tls_conn *conn)
{
    if (!conn)
        return;
    ERR_clear_error();
    if (!conn->has_failed && SSL_is_init_finished(conn->ssl))
        (void)SSL_shutdown(conn->ssl); /* best effort */
    ERR_clear_error();
    SSL_free(conn->ssl);
    rk_free(conn);
}

/* --- what went wrong --- */

static const char *describe_reason(unsigned long error)
{
    int reason = ERR_GET_REASON(error);

    switch (reason) {
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return "it has shown no certificate";
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_BAD_PACKET_LENGTH:
    case SSL_R_UNEXPECTED_MESSAGE:
        return "it does not speak TLS";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
        return "it does not speak TLS 1.2 or later";
    default:
        return ERR_reason_error_string(error);
    }
}

/* An alert that the peer sent, in the words of RFC 8446; NULL for another error. */
static const char *find_alert(unsigned long error)
{
    int reason = ERR_GET_REASON(error);

    if (ERR_GET_LIB(error) != ERR_LIB_SSL || reason < SSL_AD_REASON_OFFSET ||
        reason > SSL_AD_REASON_OFFSET + UINT8_MAX)
        return NULL;
    reason -= SSL_AD_REASON_OFFSET;
    return reason == SSL_AD_CERTIFICATE_REQUIRED ? "certificate required"
                                                 : SSL_alert_desc_string_long(reason);
}

static void set_error(struct rk_tls_conn *conn, int code, int error)
{
    unsigned long first = ERR_peek_error();
    const char *alert = find_alert(first), *text;

    conn->has_failed = true;
    conn->has_closed |= code == SSL_ERROR_ZERO_RETURN || (code == SSL_ERROR_SYSCALL && error == 0);
    if (conn->error[0])
        return;
    if (conn->verify_error[0])
        snprintf(conn->error, sizeof(conn->error), "%s", conn->verify_error);
    else if (alert)
        snprintf(conn->error, sizeof(conn->error), "it refuses this side: %s", alert);
    else if (conn->has_closed)
        snprintf(conn->error, sizeof(conn->error), "it closed the connection");
    else if (code == SSL_ERROR_SYSCALL && first == 0)
        snprintf(conn->error, sizeof(conn->error), "%s", strerror(error));
    else
        snprintf(conn->error, sizeof(conn->error), "%s",
                 (text = describe_reason(first)) ? text : "TLS failed");
}

/* True if it can continue later; sets the error otherwise. */
static bool is_later(struct rk_tls_conn *conn, int rc)
{
    int error = errno, code = SSL_get_error(conn->ssl, rc);

    if (code == SSL_ERROR_WANT_READ || code == SSL_ERROR_WANT_WRITE)
        return true;
    set_error(conn, code, code == SSL_ERROR_SYSCALL && rc == 0 ? 0 : error);
    ERR_clear_error();
    return false;
}

bool rk_tls_has_closed(const struct rk_tls_conn *conn)
{
    return conn->has_closed;
}

const char *rk_tls_error(const struct rk_tls_conn *conn)
{
    return conn->error;
}

/* --- handshake and bytes --- */

rk_tls_step_t rk_tls_shake(struct rk_tls_conn *conn)
{
    int rc;

    if (conn->has_failed)
        return RK_TLS_FAILED;
    ERR_clear_error();
    errno = 0;
    rc = SSL_do_handshake(conn->ssl);
    if (rc == 1)
        return RK_TLS_DONE;
    return is_later(conn, rc) ? RK_TLS_WAITS : RK_TLS_FAILED;
}

bool rk_tls_waits_to_send(const struct rk_tls_conn *conn)
{
    return SSL_want_write(conn->ssl);
}

static ssize_t fail_errno(int error)
{
    errno = error;
    return -1;
}

ssize_t rk_tls_recv(struct rk_tls_conn *conn, void *data, size_t bytes)
{
    size_t done = 0;

    conn->is_drained = false;
    while (done < bytes && !conn->has_closed && !conn->has_failed) {
        int part = (int)RK_MIN(bytes - done, (size_t)INT_MAX), rc;

        ERR_clear_error();
        errno = 0;
        rc = SSL_read(conn->ssl, (char *)data + done, part);
        if (rc > 0) {
            done += (size_t)rc;
        } else if (SSL_get_error(conn->ssl, rc) == SSL_ERROR_ZERO_RETURN) {
            conn->has_closed = true;
        } else if (is_later(conn, rc)) {
            conn->is_drained = true;
            return done > 0 ? (ssize_t)done : fail_errno(EAGAIN);
        }
    }
    if (done > 0 || bytes == 0)
        return (ssize_t)done;
    return conn->has_closed ? 0 : fail_errno(EPROTO);
}

ssize_t rk_tls_send(struct rk_tls_conn *conn, const void *data, size_t bytes)
{
    size_t done = 0;

    while (done < bytes && !conn->has_failed) {
        int part = (int)RK_MIN(bytes - done, (size_t)INT_MAX), rc;

        ERR_clear_error();
        errno = 0;
        rc = SSL_write(conn->ssl, (const char *)data + done, part);
        if (rc > 0)
            done += (size_t)rc;
        else if (is_later(conn, rc))
            return done > 0 ? (ssize_t)done : fail_errno(EAGAIN);
    }
    if (done > 0 || bytes == 0)
        return (ssize_t)done;
    return fail_errno(EPROTO);
}

bool rk_tls_is_drained(const struct rk_tls_conn *conn)
{
    return conn->is_drained;
}

char *rk_tls_peer_names(const struct rk_tls_conn *conn)
{
    X509 *cert = SSL_get_verify_result(conn->ssl) == X509_V_OK ? SSL_get0_peer_certificate(conn->ssl) : NULL;

    return cert ? rk_tls_names_of(cert, "\n") : rk_strdup("");
}
