/* A directory of checkpoints: the names of its steps, which of them are whole, and the tracker. */
#include "base/format/rk_ckpt_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_ckpt_dir_internal.h"
#include "base/rk_file.h"
#include "base/rk_file_io.h"
#include "base/rk_log.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"

#define TRACKER_BYTES_MAX 64

/* --- names --- */

char *rk_ckpt_step_dir(const char *dir, int64_t step)
{
    char name[64];

    RK_ASSERT(step >= 0);
    snprintf(name, sizeof(name), RK_CKPT_STEP_PREFIX "%lld", (long long)step);
    return rk_path_join(dir, name);
}

/* Digits without sign and leading zeros. */
static bool parse_step(const char *text, int64_t *step)
{
    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '\0'))
        return false;
    return rk_parse_i64(text, step) && *step <= RK_CKPT_STEP_MAX;
}

bool rk_ckpt_step_parse(const char *path, int64_t *step)
{
    char *copy = rk_strdup(path), *name;
    size_t bytes = strlen(copy);
    bool is_step;

    while (bytes > 1 && copy[bytes - 1] == '/')
        copy[--bytes] = '\0';
    name = strrchr(copy, '/');
    name = name ? name + 1 : copy;
    is_step =
        rk_str_has_prefix(name, RK_CKPT_STEP_PREFIX) && parse_step(name + strlen(RK_CKPT_STEP_PREFIX), step);
    rk_free(copy);
    return is_step;
}

/* --- a directory of checkpoints --- */

void rk_ckpt_steps_fini(struct rk_ckpt_steps *steps)
{
    rk_array_fini(&steps->steps);
}

static int compare_descending(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;

    return left > right ? -1 : left < right;
}

struct rk_status *rk_ckpt_list(struct rk_ckpt_steps *out, const char *dir)
{
    struct rk_ckpt_names names = {0};
    struct rk_status *st = rk_ckpt_list_names(&names, dir);

    *out = (struct rk_ckpt_steps){0};
    for (int64_t i = 0; i < names.items.count; i++) {
        int64_t step;

        if (rk_ckpt_step_parse(names.items.items[i], &step))
            rk_array_append(&out->steps, step);
    }
    rk_ckpt_names_fini(&names);
    if (out->steps.count > 1)
        qsort(out->steps.items, (size_t)out->steps.count, sizeof(*out->steps.items), compare_descending);
    return st;
}

static struct rk_status *check_part(const char *dir, int64_t step, const char *role,
                                    rk_ckpt_check_level_t level)
{
    char *step_dir = rk_ckpt_step_dir(dir, step), *part_dir = rk_path_join(step_dir, role);
    struct rk_ckpt_manifest manifest;
    struct rk_status *st = rk_ckpt_check(&manifest, part_dir, level);

    rk_ckpt_manifest_fini(&manifest);
    rk_free(step_dir);
    rk_free(part_dir);
    return st;
}

struct rk_status *rk_ckpt_check_step(const char *dir, int64_t step, const char *const *roles,
                                     rk_ckpt_check_level_t level)
{
    for (; *roles; roles++)
        RK_TRY(check_part(dir, step, *roles, level));
    return NULL;
}

struct rk_status *rk_ckpt_find_latest(int64_t *step, const char *dir, const char *const *roles,
                                      rk_ckpt_check_level_t level)
{
    struct rk_ckpt_steps steps;
    struct rk_status *st = rk_ckpt_list(&steps, dir);

    *step = -1;
    for (int64_t i = 0; !st && *step < 0 && i < steps.steps.count; i++) {
        struct rk_status *problem = rk_ckpt_check_step(dir, steps.steps.items[i], roles, level);

        if (!problem)
            *step = steps.steps.items[i];
        else
            RK_WARN("checkpoint " RK_CKPT_STEP_PREFIX "%lld is skipped: %s", (long long)steps.steps.items[i],
                    rk_status_message(problem));
        rk_status_free(problem);
    }
    rk_ckpt_steps_fini(&steps);
    return st;
}

struct rk_status *rk_ckpt_sweep(const char *dir)
{
    struct rk_ckpt_steps steps;
    struct rk_status *st = rk_ckpt_list(&steps, dir);

    for (int64_t i = 0; !st && i < steps.steps.count; i++) {
        char *step_dir = rk_ckpt_step_dir(dir, steps.steps.items[i]);

        st = rk_ckpt_sweep_step(step_dir, NULL);
        (void)rmdir(step_dir); /* fails, as it should, unless it is empty */
        rk_free(step_dir);
    }
    rk_ckpt_steps_fini(&steps);
    return st;
}

/* --- the tracker --- */

struct rk_status *rk_ckpt_tracker_read(int64_t *step, const char *dir)
{
    char *path = rk_path_join(dir, RK_CKPT_TRACKER_FILE), *text;
    size_t bytes;
    struct rk_status *st = rk_file_read(&text, &bytes, path, TRACKER_BYTES_MAX);

    *step = -1;
    if (!st) {
        while (bytes > 0 && strchr(" \t\r\n", text[bytes - 1]))
            text[--bytes] = '\0';
        if (strlen(text) != bytes || !parse_step(text, step))
            st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s' does not hold the number of a step",
                                path);
        rk_free(text);
    } else if (rk_status_code(st) == RK_NOT_FOUND) {
        rk_status_free(st);
        st = NULL;
    }
    rk_free(path);
    return st;
}

struct rk_status *rk_ckpt_tracker_write(const char *dir, int64_t step)
{
    char *path = rk_path_join(dir, RK_CKPT_TRACKER_FILE);
    char *text = rk_format("%lld", (long long)step);
    struct rk_status *st;

    RK_ASSERT(step >= 0);
    st = rk_write_file_atomic(path, text, strlen(text));
    rk_free(text);
    rk_free(path);
    return st;
}
