#include "base/rk_small_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_file.h"
#include "base/rk_str.h"

#define COPY_BYTES_MAX (64u << 20) /* as large as a tokenizer.json may be */

struct rk_status *rk_load_file(char **out, size_t *bytes, const char *path, size_t max_bytes)
{
    size_t count;

    RK_TRY(rk_file_read(out, &count, path, max_bytes));
    if (bytes)
        *bytes = count;
    return NULL;
}

struct rk_status *rk_open_input(FILE **out, const char *path)
{
    int fd;

    *out = NULL;
    RK_TRY(rk_file_open_read(&fd, path));
    *out = fdopen(fd, "r");
    if (*out)
        return NULL;
    close(fd);
    return rk_file_errno("cannot open", path);
}

struct rk_status *rk_load_stdin(char **out, size_t max_bytes)
{
    struct rk_status *st = NULL;
    struct rk_str text = {0};
    char part[4096];
    size_t got;

    *out = NULL;
    while (!st && (got = fread(part, 1, sizeof(part), stdin)) > 0) {
        if (text.bytes + got > max_bytes)
            st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "standard input is larger than %zu bytes", max_bytes);
        else
            rk_str_append_bytes(&text, part, got);
    }
    if (!st && ferror(stdin))
        st = rk_file_errno("cannot read", "standard input");
    if (!st)
        *out = rk_str_take(&text);
    rk_str_fini(&text);
    return st;
}

static struct rk_status *make_dir(const char *path)
{
    struct stat info;

    if (mkdir(path, 0777) == 0)
        return NULL;
    if (errno != EEXIST)
        return rk_file_errno("cannot create directory", path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "cannot create directory '%s': a file of that name exists", path);
}

struct rk_status *rk_make_dirs(const char *path)
{
    struct rk_status *st = NULL;
    char *copy;

    RK_TRY(rk_path_check(path, true));
    copy = rk_strdup(path);
    for (char *slash = copy[0] ? strchr(copy + 1, '/') : NULL; slash && !st; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        st = make_dir(copy);
        *slash = '/';
    }
    if (!st)
        st = make_dir(copy);
    rk_free(copy);
    return st;
}

struct rk_status *rk_load_json_if_there(struct rk_json **out, const char *dir, const char *name,
                                        size_t max_bytes, uint32_t flags)
{
    char *path = rk_path_join(dir, name);
    struct rk_status *st = rk_json_parse_file(out, path, max_bytes, flags);

    rk_free(path);
    if (!st)
        return NULL;
    *out = NULL;
    if (rk_status_code(st) != RK_NOT_FOUND)
        return st;
    rk_status_free(st);
    return NULL;
}

struct rk_status *rk_copy_if_there(const char *from_dir, const char *to_dir, const char *name)
{
    struct rk_status *st;
    char *from = rk_path_join(from_dir, name), *to = rk_path_join(to_dir, name);
    char *text = NULL;
    size_t bytes = 0;

    st = rk_load_file(&text, &bytes, from, COPY_BYTES_MAX);
    if (rk_status_code(st) == RK_NOT_FOUND) {
        rk_status_free(st);
        st = NULL;
    } else if (!st) {
        st = rk_write_file_atomic(to, text, bytes);
    }
    rk_free(text);
    rk_free(from);
    rk_free(to);
    return st;
}

char *rk_resolve_path(const char *base, const char *path)
{
    const char *home = rk_str_has_prefix(path, "~/") ? rk_env("HOME") : NULL;

    if (home && *home)
        return rk_path_join(home, path + 2);
    return path[0] == '/' ? rk_strdup(path) : rk_path_join(base, path);
}

char *rk_resolve_program(const char *base, const char *name)
{
    return strchr(name, '/') ? rk_resolve_path(base, name) : rk_strdup(name);
}

char *rk_file_name_of(const char *text)
{
    char *name = rk_strdup(*text ? text : "run");

    for (char *c = name; *c; c++) {
        for (int bytes = *c == '/' ? 1 : rk_utf8_control_bytes(c); bytes > 0; bytes--)
            c[bytes - 1] = '_';
    }
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        memset(name, '_', strlen(name));
    return name;
}
