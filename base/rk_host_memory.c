/* Host memory that this process can still allocate: the memory that is available without swapping, at most
 * what every control group above the process allows (version 2, or the memory controller of version 1).
 *
 * Inactive page cache of a group counts as free, as it does for the host: otherwise reading a checkpoint
 * would seem to use the memory up. Groups are searched at the path of the process, and at every path above
 * it: inside a container only some of them exist, and their limits apply. */
#include "base/rk_host_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_hash.h"
#include "base/rk_random.h"
#include "base/rk_str.h"

#define LINE_BYTES 4096 /* paths of control groups are the longest lines */

struct hierarchy {
    const char *mount, *limit, *usage, *cache;
};

static const struct hierarchy version2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
static const struct hierarchy version1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                          "memory.usage_in_bytes", "total_inactive_file"};

/* The number after `key` at the beginning of a line of the file, or of its first line with key "". Other
 * text, such as "max", is not a number. */
static bool read_number(const char *path, const char *key, uint64_t *out)
{
    FILE *file = fopen(path, "re");
    size_t key_length = strlen(key);
    char line[LINE_BYTES];
    bool is_found = false;

    if (!file)
        return false;
    while (!is_found && fgets(line, sizeof(line), file)) {
        const char *begin = line + key_length;
        char *end;

        if (strncmp(line, key, key_length) != 0)
            continue;
        *out = strtoumax(begin, &end, 10);
        is_found = end != begin;
        if (!key_length)
            break;
    }
    fclose(file);
    return is_found;
}

static bool read_group_number(const char *group, const char *name, const char *key, uint64_t *out)
{
    char *path = rk_path_join(group, name);
    bool is_found = read_number(path, key, out);

    rk_free(path);
    return is_found;
}

/* Memory that the group at this path leaves, UINT64_MAX when there is none or it has no limit. */
static uint64_t room_of_group(const char *group, const struct hierarchy *hierarchy)
{
    uint64_t limit, usage, cache = 0;

    if (!read_group_number(group, hierarchy->limit, "", &limit) ||
        !read_group_number(group, hierarchy->usage, "", &usage))
        return UINT64_MAX;
    (void)read_group_number(group, "memory.stat", hierarchy->cache, &cache);
    usage -= RK_MIN(cache, usage);
    return limit - RK_MIN(usage, limit);
}

/* The minimum of the groups from `path` up to the mount. Truncates `path`. */
static uint64_t room_of_groups(const char *root, const struct hierarchy *hierarchy, char *path)
{
    uint64_t room = UINT64_MAX;
    char *slash;

    do {
        char *group = rk_format("%s%s%s", root, hierarchy->mount, path);
        uint64_t of_group = room_of_group(group, hierarchy);

        room = RK_MIN(room, of_group);
        rk_free(group);
        slash = strrchr(path, '/');
        if (slash)
            *slash = '\0';
    } while (slash);
    return room;
}

static bool has_memory(const char *controllers)
{
    const char *at = strstr(controllers, "memory");

    return at && (at == controllers || at[-1] == ',') && (at[6] == ',' || at[6] == '\0');
}

/* Lines are NUMBER:CONTROLLERS:PATH; version 2 has no controllers. */
static uint64_t room_of_line(const char *root, char *line)
{
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;

    if (!path)
        return UINT64_MAX;
    *controllers++ = '\0';
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    if (!*controllers)
        return room_of_groups(root, &version2, path);
    return has_memory(controllers) ? room_of_groups(root, &version1, path) : UINT64_MAX;
}

static uint64_t room_of_process(const char *root)
{
    char *path = rk_format("%s/proc/self/cgroup", root), line[LINE_BYTES];
    FILE *file = fopen(path, "re");
    uint64_t room = UINT64_MAX;

    while (file && fgets(line, sizeof(line), file)) {
        uint64_t of_line = room_of_line(root, line);

        room = RK_MIN(room, of_line);
    }
    if (file)
        fclose(file);
    rk_free(path);
    return room;
}

uint64_t rk_host_free_bytes(const char *root)
{
    char *path = rk_format("%s/proc/meminfo", root);
    uint64_t available_kib, bytes = UINT64_MAX, room = room_of_process(root);

    if (read_number(path, "MemAvailable:", &available_kib))
        bytes = available_kib * 1024;
    rk_free(path);
    return RK_MIN(bytes, room);
}

uint64_t rk_host_used_bytes(const char *root)
{
    char *path = rk_format("%s/proc/meminfo", root);
    uint64_t total_kib = 0, available_kib = 0;
    bool is_known =
        read_number(path, "MemTotal:", &total_kib) && read_number(path, "MemAvailable:", &available_kib);

    rk_free(path);
    return is_known ? (total_kib - RK_MIN(available_kib, total_kib)) * 1024 : 0;
}

/* All of a small file. */
static void add_file(struct rk_sha256 *sha, const char *root, const char *name, bool *is_known)
{
    char *path = rk_format("%s%s", root, name), line[LINE_BYTES];
    FILE *file = fopen(path, "re");
    size_t total = 0, bytes;

    while (file && (bytes = fread(line, 1, sizeof(line), file)) > 0) {
        rk_sha256_update(sha, line, bytes);
        total += bytes;
    }
    if (file)
        fclose(file);
    *is_known = *is_known && total > 0;
    rk_free(path);
}

/* Paths of control groups are relative to their namespace: containers on one host may have the same. */
void rk_host_memory_domain(const char *root, char out[RK_HOST_MEMORY_DOMAIN_BYTES])
{
    char *path = rk_format("%s/proc/self/ns/cgroup", root), link[64];
    ssize_t bytes = readlink(path, link, sizeof(link));
    uint8_t digest[RK_SHA256_BYTES];
    struct rk_sha256 sha;
    bool is_known = true;

    rk_sha256_init(&sha);
    add_file(&sha, root, "/proc/sys/kernel/random/boot_id", &is_known);
    add_file(&sha, root, "/proc/self/cgroup", &is_known);
    if (bytes > 0) /* not before Linux 4.6 */
        rk_sha256_update(&sha, link, (size_t)bytes);
    rk_sha256_final(&sha, digest);
    out[0] = '\0';
    if (is_known)
        rk_hex(digest, (RK_HOST_MEMORY_DOMAIN_BYTES - 1) / 2, out);
    rk_free(path);
}

uint64_t rk_host_resident_bytes(const char *root)
{
    char *path = rk_format("%s/proc/self/statm", root);
    FILE *file = fopen(path, "re");
    uint64_t total, resident = 0, shared = 0;

    if (file && fscanf(file, "%" SCNu64 " %" SCNu64 " %" SCNu64, &total, &resident, &shared) != 3)
        resident = shared = 0;
    if (file)
        fclose(file);
    rk_free(path);
    return (resident - RK_MIN(shared, resident)) * (uint64_t)sysconf(_SC_PAGESIZE);
}
