/* Lists of daemon addresses. */
#include "driver-cli/rk_driver.h"

#include <ctype.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "driver-cli/driver/files_internal.h"

#define HOSTS_MAX           RK_MESH_MAX_RANKS
#define HOST_FILE_BYTES_MAX (1u << 20)
#define UNIX_PATH_BYTES_MAX 107 /* sun_path */
#define EXPECTED_ADDRESS    "expected HOST:PORT, [IPV6]:PORT, unix:PATH or unix-abstract:NAME"

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

static struct rk_status *check_tcp(const char *address)
{
    const char *colon = strrchr(address, ':');
    int64_t port;

    if (!colon || colon == address || !rk_parse_i64(colon + 1, &port))
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': " EXPECTED_ADDRESS, address);
    if (port < 1 || port > 65535)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': port %s is not in 1..65535", address, colon + 1);
    if (address[0] == '[' ? colon[-1] != ']' : memchr(address, ':', (size_t)(colon - address)) != NULL)
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s': " EXPECTED_ADDRESS, address);
    return NULL;
}

static struct rk_status *check_address(const char *address)
{
    if (has_bad_byte(address))
        return RK_FAIL(RK_INVALID_ARGUMENT, "address '%s' holds white space; " EXPECTED_ADDRESS, address);
    if (rk_str_has_prefix(address, "unix:"))
        return check_socket_name(address, address + strlen("unix:"));
    if (rk_str_has_prefix(address, "unix-abstract:"))
        return check_socket_name(address, address + strlen("unix-abstract:"));
    if (rk_str_has_prefix(address, "dns:") || rk_str_has_prefix(address, "slurm:"))
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "address '%s': this version does not expand dns: and slurm: lists; name the daemons "
                       "or use @FILE",
                       address);
    return check_tcp(address);
}

static struct rk_status *append_address(struct rk_hosts *hosts, const char *begin, size_t bytes)
{
    char *address;
    struct rk_status *st;

    while (bytes > 0 && isspace((unsigned char)*begin)) {
        begin++;
        bytes--;
    }
    while (bytes > 0 && isspace((unsigned char)begin[bytes - 1]))
        bytes--;
    if (bytes == 0)
        return NULL;
    if (hosts->count == HOSTS_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "more than %d addresses", HOSTS_MAX);
    address = rk_strndup(begin, bytes);
    st = check_address(address);
    for (int32_t i = 0; !st && i < hosts->count; i++) {
        if (strcmp(hosts->addresses[i], address) == 0)
            st = RK_FAIL(RK_INVALID_ARGUMENT, "address '%s' stands twice in the list (ranks %d and %d)",
                         address, i, hosts->count);
    }
    if (st) {
        rk_free(address);
        return st;
    }
    hosts->addresses = rk_realloc(hosts->addresses, (size_t)(hosts->count + 1) * sizeof(*hosts->addresses));
    hosts->addresses[hosts->count++] = address;
    return NULL;
}

/* gRPC would take "unix:A,unix:B" for one daemon with two addresses, and talk to the first. */
static struct rk_status *append_line(struct rk_hosts *hosts, const char *line, size_t bytes)
{
    const char *end = line + bytes;

    while (line < end) {
        const char *comma = memchr(line, ',', (size_t)(end - line));
        size_t part = (size_t)((comma ? comma : end) - line);

        RK_TRY(append_address(hosts, line, part));
        line += part + (comma != NULL);
    }
    return NULL;
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
        size_t bytes = strcspn(part, ",");

        if (part[0] == '@') {
            char *path = rk_strndup(part + 1, bytes - 1);

            st = append_file(out, path);
            rk_free(path);
        } else {
            st = append_address(out, part, bytes);
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
