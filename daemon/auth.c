/* The token file is read once; only digests of the tokens are kept. A presented token is hashed and compared
 * with every line without an early exit, so the time does not reveal a similar line or the length of a token
 * is. */
#include "daemon/auth_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_hash.h"
#include "base/net/rk_secret.h"
#include "base/rk_str.h"
#include "proto/limits.h"

#define SCHEME          "Bearer "
#define MIN_TOKEN_BYTES 32

#define CERT_PREFIX "cert="

struct token {
    rk_rights_t rights;
    bool has_digest; /* false: the certificate's name is sufficient */
    uint8_t digest[RK_SHA256_BYTES];
    char *cert_name; /* NULL: any certificate or none */
};

struct rk_auth {
    bool is_open; /* no tokens configured */
    RK_ARRAY(struct token) tokens;
};

static const struct {
    const char *name;
    rk_rights_t rights;
} roles[] = {{"viewer", RK_RIGHTS_VIEWER}, {"driver", RK_RIGHTS_DRIVER}, {"admin", RK_RIGHTS_ADMIN}};

static rk_rights_t find_role(const char *name, size_t bytes)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        if (strlen(roles[i].name) == bytes && memcmp(name, roles[i].name, bytes) == 0)
            return roles[i].rights;
    }
    return RK_RIGHTS_NONE;
}

static struct rk_status *parse_token(struct token *out, const char *text, size_t bytes)
{
    if (bytes < MIN_TOKEN_BYTES)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the token has %zu characters, expected at least %d", bytes,
                       MIN_TOKEN_BYTES);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "character %zu of the token is not printable ASCII (or a carriage return)", i + 1);
    }
    rk_sha256_of(text, bytes, out->digest);
    out->has_digest = true;
    return NULL;
}

static struct rk_status *parse_cert_name(struct token *out, const char *text, size_t bytes)
{
    size_t prefix_bytes = strlen(CERT_PREFIX);

    if (bytes <= prefix_bytes || memcmp(text, CERT_PREFIX, prefix_bytes) != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected " CERT_PREFIX "NAME after the space");
    for (size_t i = prefix_bytes; i < bytes; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "character %zu of " CERT_PREFIX "NAME is not printable ASCII (or a space, or a "
                           "carriage return)",
                           i + 1 - prefix_bytes);
    }
    out->cert_name = rk_strndup(text + prefix_bytes, bytes - prefix_bytes);
    return NULL;
}

static struct rk_status *check_new(const struct rk_auth *auth, const struct token *token)
{
    for (int64_t i = 0; i < auth->tokens.count; i++) {
        const struct token *other = &auth->tokens.items[i];

        if (token->has_digest && other->has_digest &&
            rk_equal_secret(other->digest, token->digest, sizeof(token->digest)))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "the token is also on an earlier line; each may have only one role");
        if (!token->has_digest && !other->has_digest && strcmp(token->cert_name, other->cert_name) == 0)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "the certificate is also on an earlier line; each may have only one role");
    }
    return NULL;
}

/* ROLE[:TOKEN][ cert=NAME], with at least one of the two. */
static struct rk_status *parse_line(struct rk_auth *auth, const char *line, size_t bytes)
{
    const char *end = line + bytes, *space = memchr(line, ' ', bytes);
    const char *colon = memchr(line, ':', space ? (size_t)(space - line) : bytes);
    const char *role_end = colon ? colon : space, *token_end = space ? space : end;
    struct token token = {0};
    struct rk_status *st = NULL;

    if (!role_end)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "expected ROLE:TOKEN, ROLE:TOKEN " CERT_PREFIX "NAME or ROLE " CERT_PREFIX "NAME");
    token.rights = find_role(line, (size_t)(role_end - line));
    if (token.rights == RK_RIGHTS_NONE)
        return RK_FAIL(RK_INVALID_ARGUMENT, "unknown role, expected admin, driver or viewer");
    if (colon)
        st = parse_token(&token, colon + 1, (size_t)(token_end - colon - 1));
    if (!st && space)
        st = parse_cert_name(&token, space + 1, (size_t)(end - space - 1));
    if (!st)
        st = check_new(auth, &token);
    if (st)
        rk_free(token.cert_name);
    else
        rk_array_append(&auth->tokens, token);
    return st;
}

static struct rk_status *parse_lines(struct rk_auth *auth, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    int line_number = 1;

    for (const char *line = text; line < end; line_number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t line_bytes = (size_t)((newline ? newline : end) - line);
        struct rk_status *st = NULL;

        if (line_bytes > 0 && line[0] != '#')
            st = parse_line(auth, line, line_bytes);
        if (st)
            return RK_WRAP(st, "line %d", line_number);
        line += line_bytes + 1;
    }
    if (auth->tokens.count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "the file has no token, expected lines ROLE:TOKEN or ROLE " CERT_PREFIX "NAME");
    return NULL;
}

/* Group or others must not be able to read or write the token file. */
static struct rk_status *check_file(int fd)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return RK_FAIL(RK_INTERNAL, "%s", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return RK_FAIL(RK_INVALID_ARGUMENT, "not a regular file");
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return RK_FAIL(RK_PERMISSION_DENIED, "owned by user %u, expected user %u or root",
                       (unsigned)info.st_uid, (unsigned)geteuid());
    if (info.st_mode & 077)
        return RK_FAIL(RK_PERMISSION_DENIED, "readable by group or others (mode %04o); expected 0600",
                       (unsigned)(info.st_mode & 07777));
    if (info.st_size > RK_TOKEN_FILE_BYTES_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the file has %lld bytes, expected at most %d",
                       (long long)info.st_size, RK_TOKEN_FILE_BYTES_MAX);
    return NULL;
}

static struct rk_status *read_tokens(struct rk_auth *auth, int fd)
{
    char *text = rk_malloc(RK_TOKEN_FILE_BYTES_MAX);
    struct rk_status *st = NULL;
    size_t bytes = 0;
    ssize_t got = 1;

    RK_TRY_GOTO(st, check_file(fd), out);
    while (got > 0 && bytes < RK_TOKEN_FILE_BYTES_MAX) {
        got = read(fd, text + bytes, RK_TOKEN_FILE_BYTES_MAX - bytes);
        if (got < 0)
            RK_TRY_GOTO(st, RK_FAIL(RK_INTERNAL, "%s", strerror(errno)), out);
        bytes += (size_t)got;
    }
    st = parse_lines(auth, text, bytes);
out:
    explicit_bzero(text, RK_TOKEN_FILE_BYTES_MAX);
    rk_free(text);
    return st;
}

struct rk_status *rk_auth_create(struct rk_auth **out, const char *path)
{
    struct rk_auth *auth = rk_calloc(1, sizeof(*auth));
    struct rk_status *st = NULL;
    int fd;

    *out = NULL;
    if (!path) {
        auth->is_open = true;
        *out = auth;
        return NULL;
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        st = RK_FAIL(errno == ENOENT ? RK_NOT_FOUND : RK_INVALID_ARGUMENT, "%s",
                     errno == ELOOP ? "is a symbolic link" : strerror(errno));
    if (!st)
        st = read_tokens(auth, fd);
    if (fd >= 0)
        close(fd);
    if (st) {
        rk_auth_destroy(auth);
        return RK_WRAP(st, "rpc.token_file '%s'", path);
    }
    *out = auth;
    return NULL;
}

struct rk_status *rk_auth_create_generated(struct rk_auth **out, const char *dir, const char *address)
{
    struct rk_auth *auth = rk_calloc(1, sizeof(*auth));
    char *path = rk_path_join(dir, RK_TOKEN_NAME), *address_path = rk_path_join(dir, RK_TOKEN_ADDRESS_NAME);
    char *line = NULL;
    struct rk_status *st = rk_make_token(&line);

    *out = NULL;
    if (!st)
        st = parse_lines(auth, line, strlen(line));
    if (!st)
        st = rk_write_secret(path, line, 0640);
    if (!st)
        st = rk_write_secret(address_path, address, 0640);
    rk_free(path);
    rk_free(address_path);
    if (line)
        explicit_bzero(line, strlen(line));
    rk_free(line);
    if (st) {
        rk_auth_destroy(auth);
        return st;
    }
    *out = auth;
    return NULL;
}

void rk_auth_destroy(struct rk_auth *auth)
{
    if (!auth)
        return;
    for (int64_t i = 0; i < auth->tokens.count; i++)
        rk_free(auth->tokens.items[i].cert_name);
    rk_array_fini(&auth->tokens);
    rk_free(auth);
}

bool rk_auth_asks_names(const struct rk_auth *auth)
{
    for (int64_t i = 0; i < auth->tokens.count; i++) {
        if (auth->tokens.items[i].cert_name)
            return true;
    }
    return false;
}

/* Whether the name is a whole line of `names`. */
static bool has_name(const char *names, const char *name)
{
    size_t bytes = strlen(name);

    while (names && *names) {
        size_t line_bytes = strcspn(names, "\n");

        if (line_bytes == bytes && memcmp(names, name, bytes) == 0)
            return true;
        names += line_bytes + (names[line_bytes] == '\n');
    }
    return false;
}

/* The token's line; without an early exit, as the top of this file says. */
static const struct token *find_token(const struct rk_auth *auth, const struct rk_credentials *given)
{
    size_t scheme_bytes = strlen(SCHEME);
    const struct token *found = NULL;
    uint8_t digest[RK_SHA256_BYTES];

    if (!given->header || given->header_bytes <= scheme_bytes ||
        memcmp(given->header, SCHEME, scheme_bytes) != 0)
        return NULL;
    rk_sha256_of(given->header + scheme_bytes, given->header_bytes - scheme_bytes, digest);
    for (int64_t i = 0; i < auth->tokens.count; i++) {
        const struct token *token = &auth->tokens.items[i];

        if (token->has_digest && rk_equal_secret(token->digest, digest, sizeof(digest)))
            found = token;
    }
    return found;
}

struct rk_status *rk_auth_check(rk_rights_t *granted, const struct rk_auth *auth,
                                const struct rk_credentials *given, rk_rights_t needed)
{
    rk_rights_t rights = RK_RIGHTS_NONE;
    const struct token *token;

    *granted = auth->is_open ? RK_RIGHTS_ADMIN : RK_RIGHTS_NONE;
    if (needed == RK_RIGHTS_NONE || auth->is_open)
        return NULL;
    token = find_token(auth, given);
    if (token && token->cert_name && !has_name(given->names, token->cert_name))
        return RK_FAIL_REASON(RK_PERMISSION_DENIED, "CERTIFICATE",
                              "the token is bound to a certificate that this connection did not present");
    if (token)
        rights = token->rights;
    for (int64_t i = 0; i < auth->tokens.count; i++) {
        const struct token *one = &auth->tokens.items[i];

        if (!one->has_digest && has_name(given->names, one->cert_name))
            rights = RK_MAX(rights, one->rights);
    }
    if (rights == RK_RIGHTS_NONE)
        return RK_FAIL_REASON(RK_UNAUTHENTICATED, "TOKEN", "expected a valid bearer token%s",
                              given->names && rk_auth_asks_names(auth) ? " or a certificate with a role"
                                                                       : "");
    if (rights < needed)
        return RK_FAIL_REASON(RK_PERMISSION_DENIED, "ROLE", "the role of the %s does not allow this call",
                              token ? "token" : "certificate");
    *granted = rights;
    return NULL;
}
