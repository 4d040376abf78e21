/* Lists of daemon addresses. */
#include "driver/rk_driver.h"

#include <ctype.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_small_file.h"
#include "driver/hosts_internal.h"

#define HOSTS_MAX           RK_MESH_MAX_RANKS
#define HOST_FILE_BYTES_MAX (1u << 20)
#define UNIX_PATH_BYTES_MAX 107 /* sun_path */
#define EXPECTED_ADDRESS                                                                      \
    "expected HOST[:PORT], [IPV6][:PORT], unix:PATH, unix-abstract:NAME, dns:NAME[:PORT] or " \
    "slurm:[PORT]"

/* --- one address --- */

static bool has_bad_byte(const char *text)
{
    for (; *text; text++) {
        if (isspace((unsigned char)*text) || iscntrl((unsigned char)*text))
            return true;
    }
    return false;
}

static struct rk_status *check_socket_name(const char *address, const char *name)
{
    size_t bytes = strlen(name);

    if (bytes == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s' has no socket name; " EXPECTED_ADDRESS, address);
    if (bytes > UNIX_PATH_BYTES_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': socket name of %zu bytes, the system allows %d",
                       address, bytes, UNIX_PATH_BYTES_MAX);
    return NULL;
}

struct rk_status *rk_hosts_port(int64_t *out, const char *text, const char *address)
{
    if (!rk_parse_i64(text, out))
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': port '%s' is not a number; " EXPECTED_ADDRESS,
                       address, text);
    if (*out < 1 || *out > 65535)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': port %s is not in 1..65535", address, text);
    return NULL;
}

/* HOST:PORT or [IPV6]:PORT. */
static struct rk_status *check_tcp(const char *address)
{
    const char *colon = strrchr(address, ':');
    int64_t port;

    if (!colon || colon == address)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': " EXPECTED_ADDRESS, address);
    RK_TRY(rk_hosts_port(&port, colon + 1, address));
    if (address[0] == '[')
        return colon[-1] == ']' ? NULL
                                : RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': " EXPECTED_ADDRESS, address);
    for (const char *at = address; at < colon; at++) {
        if (*at == '/')
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "address '%s': '/' is not part of a host name; a socket is unix:PATH, a file with "
                           "addresses @FILE",
                           address);
        if (!isalnum((unsigned char)*at) && !strchr("-._", *at))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "address '%s': '%c' is not part of a host name; " EXPECTED_ADDRESS, address, *at);
    }
    return NULL;
}

static bool is_socket(const char *address)
{
    return rk_str_has_prefix(address, "unix:") || rk_str_has_prefix(address, "unix-abstract:");
}

static struct rk_status *append_address(void *user, const char *address)
{
    struct rk_hosts *hosts = user;

    if (hosts->count == HOSTS_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "more than %d addresses", HOSTS_MAX);
    RK_TRY(is_socket(address) ? check_socket_name(address, strchr(address, ':') + 1) : check_tcp(address));
    for (int32_t i = 0; i < hosts->count; i++) {
        if (strcmp(hosts->addresses[i], address) == 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s' is listed twice (ranks %d and %d)", address, i,
                           hosts->count);
    }
    hosts->addresses = rk_realloc(hosts->addresses, (size_t)(hosts->count + 1) * sizeof(*hosts->addresses));
    hosts->addresses[hosts->count++] = rk_strdup(address);
    return NULL;
}

/* --- one term, which may stand for several --- */

/* A host name and the ports on it, which may be a range, too. */
struct tcp_term {
    struct rk_hosts *hosts;
    const char *host, *ports;
};

static struct rk_status *append_port(void *user, const char *port)
{
    const struct tcp_term *term = user;
    char *address = rk_format("%s:%s", term->host, port);
    struct rk_status *st = append_address(term->hosts, address);

    rk_free(address);
    return st;
}

static struct rk_status *append_host(void *user, const char *host)
{
    struct tcp_term *term = user;

    term->host = host;
    return rk_host_ranges_expand(term->ports, HOSTS_MAX, append_port, term);
}

/* Where ":PORT" begins, or the end. The literal of an IPv6 address is a bracket with colons. */
static size_t host_bytes(const char *text, bool *is_literal)
{
    const char *close = text[0] == '[' ? strchr(text, ']') : NULL;
    const char *colon = NULL;
    bool is_inside = false;

    *is_literal = close && memchr(text, ':', (size_t)(close - text));
    if (*is_literal)
        return (size_t)(close - text) + 1;
    for (const char *at = text; *at; at++) {
        is_inside = *at == '[' || (is_inside && *at != ']');
        if (*at == ':' && !is_inside)
            colon = at;
    }
    return colon ? (size_t)(colon - text) : strlen(text);
}

static struct rk_status *append_tcp(struct rk_hosts *hosts, const char *text)
{
    char *default_port = rk_format("%d", RK_DEFAULT_PORT);
    bool is_literal;
    size_t bytes = host_bytes(text, &is_literal);
    char *host = rk_strndup(text, bytes);
    struct tcp_term term = {.hosts = hosts, .ports = text[bytes] ? text + bytes + 1 : default_port};
    struct rk_status *st;

    if (text[bytes] && text[bytes] != ':')
        st = RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': " EXPECTED_ADDRESS, text);
    else
        st = is_literal ? append_host(&term, host)
                        : rk_host_ranges_expand(host, HOSTS_MAX, append_host, &term);
    rk_free(host);
    rk_free(default_port);
    return st;
}

static struct rk_status *append_text(struct rk_hosts *hosts, const char *text)
{
    if (has_bad_byte(text))
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s' contains white space; " EXPECTED_ADDRESS, text);
    if (is_socket(text))
        return rk_host_ranges_expand(text, HOSTS_MAX, append_address, hosts);
    if (rk_str_has_prefix(text, "slurm:"))
        return rk_hosts_slurm(text + strlen("slurm:"), append_address, hosts);
    if (rk_str_has_prefix(text, "dns:"))
        return rk_hosts_dns(text + strlen("dns:"), append_address, hosts);
    return append_tcp(hosts, text);
}

static struct rk_status *append_term(struct rk_hosts *hosts, const char *begin, size_t bytes)
{
    struct rk_status *st;
    char *text;

    while (bytes > 0 && isspace((unsigned char)*begin)) {
        begin++;
        bytes--;
    }
    while (bytes > 0 && isspace((unsigned char)begin[bytes - 1]))
        bytes--;
    if (bytes == 0)
        return NULL;
    text = rk_strndup(begin, bytes);
    st = append_text(hosts, text);
    rk_free(text);
    return st;
}

/* --- lists --- */

/* gRPC would treat "unix:A,unix:B" as one daemon with two addresses, and use the first. */
static struct rk_status *append_line(struct rk_hosts *hosts, const char *line, size_t bytes)
{
    char *text = rk_strndup(line, bytes);
    struct rk_status *st = NULL;

    for (const char *term = text; !st && *term;) {
        size_t part = rk_hosts_term_bytes(term);

        st = append_term(hosts, term, part);
        term += part + (term[part] == ',');
    }
    rk_free(text);
    return st;
}

static struct rk_status *append_file(struct rk_hosts *hosts, const char *path)
{
    struct rk_status *st;
    char *text;
    int line_number = 1;

    RK_TRY(rk_load_file(&text, NULL, path, HOST_FILE_BYTES_MAX));
    st = NULL;
    for (const char *line = text; !st && *line; line_number++) {
        size_t bytes = strcspn(line, "\n");
        const char *comment = memchr(line, '#', bytes);

        st = append_line(hosts, line, comment ? (size_t)(comment - line) : bytes);
        if (st)
            st = RK_WRAP(st, "%s:%d", path, line_number);
        line += bytes + (line[bytes] == '\n');
    }
    rk_free(text);
    return st;
}

struct rk_status *rk_hosts_parse(struct rk_hosts *out, const char *text)
{
    struct rk_status *st = NULL;

    *out = (struct rk_hosts){0};
    for (const char *part = text; !st && *part;) {
        size_t bytes = part[0] == '@' ? strcspn(part, ",") : rk_hosts_term_bytes(part);

        if (part[0] == '@') {
            char *path = rk_strndup(part + 1, bytes - 1);

            st = append_file(out, path);
            rk_free(path);
        } else {
            st = append_term(out, part, bytes);
        }
        part += bytes + (part[bytes] == ',');
    }
    if (!st && out->count == 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "the list of daemons is empty; " EXPECTED_ADDRESS);
    if (st)
        rk_hosts_fini(out);
    return st;
}

void rk_hosts_fini(struct rk_hosts *hosts)
{
    for (int32_t i = 0; i < hosts->count; i++)
        rk_free(hosts->addresses[i]);
    rk_free(hosts->addresses);
    *hosts = (struct rk_hosts){0};
}
