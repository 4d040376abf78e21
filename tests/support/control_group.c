#include "tests/support/control_group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define V1_ROOT "/sys/fs/cgroup/memory"
#define V2_ROOT "/sys/fs/cgroup"

struct kind {
    const char *limit, *peak, *events; /* files */
};

static const struct kind v1 = {"memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"};
static const struct kind v2 = {"memory.max", "memory.peak", "memory.events"};

struct rk_test_group {
    const struct kind *kind;
    char *path, *home; /* home: the original group of the test's process */
};

/* NULL if it cannot be read. */
static char *read_text(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name), *text = NULL;
    FILE *file = fopen(path, "re");
    char buffer[4096];
    size_t bytes;

    if (file) {
        bytes = fread(buffer, 1, sizeof(buffer) - 1, file);
        buffer[bytes] = '\0';
        text = ferror(file) ? NULL : rk_strdup(buffer);
        fclose(file);
    }
    rk_free(path);
    return text;
}

static bool write_text(const char *dir, const char *name, const char *text)
{
    char *path = rk_path_join(dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC), error = errno;
    bool is_written = false;

    if (fd >= 0) {
        is_written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
        error = errno;
        close(fd);
    }
    rk_free(path);
    errno = error;
    return is_written;
}

/* The path of the test's own group in the hierarchy whose line of /proc/self/cgroup has `controllers` ("" is
 * cgroup v2). NULL: there is none. */
static char *find_home(const char *root, const char *controllers)
{
    char *text = read_text("/proc/self", "cgroup"), *home = NULL, *rest = NULL, *list;

    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line && !home;
         line = strtok_r(NULL, "\n", &rest)) {
        list = strchr(line, ':');
        line = list ? strchr(list + 1, ':') : NULL;
        if (!line)
            continue;
        *line = '\0';
        if (strcmp(list + 1, controllers) == 0)
            home = rk_format("%s%s", root, line + 1);
    }
    rk_free(text);
    if (home && access(home, F_OK) != 0) { /* the mount does not show the upper levels of the path */
        rk_free(home);
        home = rk_strdup(root);
    }
    return home;
}

/* Creates a group below `parent`; on failure appends the reason to `why`. */
static struct rk_test_group *make_below(struct rk_str *why, const struct kind *kind, const char *parent,
                                        const char *home, int64_t bytes)
{
    char *path = rk_format("%s/rankd_test_%d", parent, (int)getpid()), text[32];
    struct rk_test_group *group = NULL;
    bool is_made;

    if (kind == &v2)
        write_text(parent, "cgroup.subtree_control", "+memory"); /* otherwise memory.max does not exist */
    is_made = mkdir(path, 0755) == 0;
    snprintf(text, sizeof(text), "%lld", (long long)bytes);
    if (is_made && write_text(path, kind->limit, text)) {
        group = rk_calloc(1, sizeof(*group));
        *group = (struct rk_test_group){.kind = kind, .path = path, .home = rk_strdup(home)};
        return group;
    }
    rk_str_appendf(why, "%s%s: %s", why->bytes > 0 ? "; " : "", path, strerror(errno));
    if (is_made)
        rmdir(path);
    rk_free(path);
    return NULL;
}

struct rk_test_group *rk_test_group_create(char **why, int64_t bytes)
{
    char *home = find_home(V1_ROOT, "memory");
    struct rk_test_group *group = NULL;
    struct rk_str tried = {0};

    if (home)
        group = make_below(&tried, &v1, home, home, bytes);
    rk_free(home);
    home = group ? NULL : find_home(V2_ROOT, "");
    if (home) {
        group = make_below(&tried, &v2, home, home, bytes);
        if (!group && strcmp(home, V2_ROOT) != 0)
            group = make_below(&tried, &v2, V2_ROOT, home, bytes);
    }
    rk_free(home);
    if (!group && tried.bytes == 0)
        rk_str_append(&tried, "no memory controller in /proc/self/cgroup");
    *why = group ? NULL : rk_str_take(&tried);
    rk_str_fini(&tried);
    return group;
}

void rk_test_group_destroy(struct rk_test_group *group)
{
    if (!group)
        return;
    for (int i = 0; i < 100 && rmdir(group->path) != 0 && errno == EBUSY; i++)
        usleep(10000); /* an exited process is removed from it asynchronously */
    rk_free(group->path);
    rk_free(group->home);
    rk_free(group);
}

static void move_to(const char *dir)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)getpid());
    if (!write_text(dir, "cgroup.procs", text))
        fail_msg("cannot move the test to the control group %s: %s", dir, strerror(errno));
}

void rk_test_group_enter(struct rk_test_group *group)
{
    move_to(group->path);
}

void rk_test_group_leave(struct rk_test_group *group)
{
    move_to(group->home);
}

int64_t rk_test_group_peak_bytes(struct rk_test_group *group)
{
    char *text = read_text(group->path, group->kind->peak);
    long long bytes = -1;

    if (text && sscanf(text, "%lld", &bytes) != 1)
        bytes = -1;
    rk_free(text);
    return bytes;
}

int64_t rk_test_group_num_killed(struct rk_test_group *group)
{
    char *text = read_text(group->path, group->kind->events), *found;
    long long count = 0;

    found = text ? strstr(text, "oom_kill ") : NULL;
    assert_true(!found || sscanf(found, "oom_kill %lld", &count) == 1);
    rk_free(text);
    return count;
}
