#include "rl/rk_jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"

static struct rk_status *read_lines(FILE *file, const char *path,
                                    bool (*on_line)(void *user, const struct rk_jsonl_line *line), void *user)
{
    struct rk_jsonl_line line = {0};
    struct rk_status *st = NULL;
    bool goes_on = true;
    char *text = NULL;
    size_t capacity = 0;

    while (!st && goes_on) {
        ssize_t bytes = getline(&text, &capacity, file);
        struct rk_json *json = NULL;

        if (bytes <= 0 || text[bytes - 1] != '\n') /* the end, or a line that was being written */
            break;
        line.number++;
        line.end += bytes;
        st = rk_json_parse(&json, text, (size_t)bytes, "line", RK_JSON_ALLOW_NUL);
        line.json = json;
        if (!st)
            goes_on = on_line(user, &line);
        else
            st = RK_WRAP(st, "%s:%lld", path, (long long)line.number);
        rk_json_free(json);
    }
    rk_free(text);
    if (!st && ferror(file))
        st = rk_file_errno("cannot read", path);
    return st;
}

struct rk_status *rk_jsonl_read(const char *path,
                                bool (*on_line)(void *user, const struct rk_jsonl_line *line), void *user)
{
    FILE *file;
    struct rk_status *st = rk_open_input(&file, path);

    if (rk_status_code(st) == RK_NOT_FOUND) {
        rk_status_free(st);
        return NULL;
    }
    RK_TRY(st);
    st = read_lines(file, path, on_line, user);
    fclose(file);
    return st;
}

struct cut {
    const char *key;
    int64_t first, end;
};

static bool on_line(void *user, const struct rk_jsonl_line *line)
{
    struct cut *cut = user;

    if (rk_json_as_int(rk_json_find(line->json, cut->key), INT64_MIN) >= cut->first)
        return false;
    cut->end = line->end;
    return true;
}

struct rk_status *rk_jsonl_cut(const char *path, const char *key, int64_t first)
{
    struct cut cut = {.key = key, .first = first};

    RK_TRY(rk_jsonl_read(path, on_line, &cut));
    return truncate(path, cut.end) == 0 || errno == ENOENT ? NULL : rk_file_errno("cannot shorten", path);
}
