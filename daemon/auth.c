/* The token file is read once; only digests of the tokens are kept. A presented token is hashed and compared
 * with every line without an early exit, so the time tells neither which line came close nor how long a token
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
#include "base/rk_str.h"
#include "proto/limits.h"

#define SCHEME          "Bearer "
#define MIN_TOKEN_BYTES 32

struct token {
    rk_rights_t rights;
    uint8_t digest[RK_SHA256_BYTES];
};

struct rk_auth {
    bool is_open; /* no tokens configured */
    RK_ARRAY(struct token) tokens;
};

static const struct {
    const char *name;
    rk_rights_t rights;
} roles[] = {{"viewer", RK_RIGHTS_VIEWER}, {"driver", RK_RIGHTS_DRIVER}, {"admin", RK_RIGHTS_ADMIN}};

static struct rk_status *parse_line(struct rk_auth *auth, const char *line, size_t bytes)
{
    const char *colon = memchr(line, ':', bytes);
    struct token token = {.rights = RK_RIGHTS_NONE};
    size_t token_bytes;

    if (!colon)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected ROLE:TOKEN");
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        if (strlen(roles[i].name) == (size_t)(colon - line) &&
            memcmp(line, roles[i].name, (size_t)(colon - line)) == 0)
            token.rights = roles[i].rights;
    }
    if (token.rights == RK_RIGHTS_NONE)
        return RK_FAIL(RK_INVALID_ARGUMENT, "unknown role, expected admin, driver or viewer");
    token_bytes = bytes - (size_t)(colon + 1 - line);
    if (token_bytes < MIN_TOKEN_BYTES)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the token has %zu characters, expected at least %d", token_bytes,
                       MIN_TOKEN_BYTES);
    for (size_t i = 0; i < token_bytes; i++) {
        if (colon[1 + i] <= ' ' || colon[1 + i] > '~')
            return RK_FAIL(
                RK_INVALID_ARGUMENT,
                "character %zu of the token is not printable ASCII (or a space, or a carriage return)",
                i + 1);
    }
    rk_sha256_of(colon + 1, token_bytes, token.digest);
    for (int64_t i = 0; i < auth->tokens.count; i++) {
        if (rk_equal_secret(auth->tokens.items[i].digest, token.digest, sizeof(token.digest)))
            return RK_FAIL(RK_INVALID_ARGUMENT, "the token is on an earlier line, too; each has one role");
    }
    rk_array_append(&auth->tokens, token);
    return NULL;
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
        return RK_FAIL(RK_INVALID_ARGUMENT, "no token, expected lines ROLE:TOKEN");
    return NULL;
}

/* A token that others can read is no secret, and one that others can write is not ours. */
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
    if (info.st_size > RK_LIMIT_TOKEN_FILE_BYTES)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%lld bytes, at most %d are allowed", (long long)info.st_size,
                       RK_LIMIT_TOKEN_FILE_BYTES);
    return NULL;
}

static struct rk_status *read_tokens(struct rk_auth *auth, int fd)
{
    char *text = rk_malloc(RK_LIMIT_TOKEN_FILE_BYTES);
    struct rk_status *st = NULL;
    size_t bytes = 0;
    ssize_t got = 1;

    RK_TRY_GOTO(st, check_file(fd), out);
    while (got > 0 && bytes < RK_LIMIT_TOKEN_FILE_BYTES) {
        got = read(fd, text + bytes, RK_LIMIT_TOKEN_FILE_BYTES - bytes);
        if (got < 0)
            RK_TRY_GOTO(st, RK_FAIL(RK_INTERNAL, "%s", strerror(errno)), out);
        bytes += (size_t)got;
    }
    st = parse_lines(auth, text, bytes);
out:
    explicit_bzero(text, RK_LIMIT_TOKEN_FILE_BYTES);
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

void rk_auth_destroy(struct rk_auth *auth)
{
    if (!auth)
        return;
    rk_array_fini(&auth->tokens);
    rk_free(auth);
}

struct rk_status *rk_auth_check(const struct rk_auth *auth, const char *header, size_t header_bytes,
                                rk_rights_t needed)
{
    size_t scheme_bytes = strlen(SCHEME);
    rk_rights_t rights = RK_RIGHTS_NONE;
    uint8_t digest[RK_SHA256_BYTES];

    if (needed == RK_RIGHTS_NONE || auth->is_open)
        return NULL;
    if (header && header_bytes > scheme_bytes && memcmp(header, SCHEME, scheme_bytes) == 0) {
        rk_sha256_of(header + scheme_bytes, header_bytes - scheme_bytes, digest);
        for (int64_t i = 0; i < auth->tokens.count; i++) {
            if (rk_equal_secret(auth->tokens.items[i].digest, digest, sizeof(digest)))
                rights = auth->tokens.items[i].rights;
        }
    }
    if (rights == RK_RIGHTS_NONE)
        return RK_FAIL_REASON(RK_UNAUTHENTICATED, "TOKEN", "a valid bearer token is needed");
    if (rights < needed)
        return RK_FAIL_REASON(RK_PERMISSION_DENIED, "ROLE", "the token's role does not allow this call");
    return NULL;
}
