#include "base/rk_ckpt_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_ckpt_dir_internal.h"
#include "base/rk_fault.h"
#include "base/rk_file_internal.h"
#include "base/rk_log.h"
#include "base/rk_safetensors.h"
#include "base/rk_str.h"

#define SHARDS_DIR "dist_ckpt"
/* A part has three levels. */
#define DEPTH_MAX         8
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

/* The last component of the path of a part; NULL when that is no name for one. */
static const char *part_name(const char *part_dir)
{
    const char *slash = strrchr(part_dir, '/');
    const char *name = slash ? slash + 1 : part_dir;

    return name[0] == '\0' || name[0] == '.' ? NULL : name;
}

/* --- lists of names --- */

struct names {
    RK_ARRAY(char *) items;
};

static void names_fini(struct names *names)
{
    for (int64_t i = 0; i < names->items.count; i++)
        rk_free(names->items.items[i]);
    rk_array_fini(&names->items);
}

/* All entries; none for a directory that does not exist. */
static struct rk_status *list_names(struct names *out, const char *dir)
{
    DIR *stream = opendir(dir);
    const struct dirent *entry;
    struct rk_status *st;

    if (!stream)
        return errno == ENOENT ? NULL : rk_file_errno("reading directory", dir);
    while (errno = 0, (entry = readdir(stream))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rk_array_append(&out->items, rk_strdup(entry->d_name));
    }
    st = errno != 0 ? rk_file_errno("reading directory", dir) : NULL;
    closedir(stream);
    return st;
}

/* Whether an entry of `dir` begins and ends so. */
static bool has_entry(const char *dir, const char *prefix, const char *suffix)
{
    struct names names = {0};
    struct rk_status *st = list_names(&names, dir);
    bool found = false;

    for (int64_t i = 0; i < names.items.count; i++)
        found = found || (rk_str_has_prefix(names.items.items[i], prefix) &&
                          rk_str_has_suffix(names.items.items[i], suffix));
    names_fini(&names);
    RK_IGNORE(st, "a directory that cannot be read has no known entry");
    return found;
}

static bool has_entry_below(const char *dir, const char *below, const char *prefix, const char *suffix)
{
    char *path = rk_path_join(dir, below);
    bool found = has_entry(path, prefix, suffix);

    rk_free(path);
    return found;
}

static struct rk_status *add_file(struct rk_ckpt_manifest *manifest, const char *part_dir, const char *name)
{
    char *path = rk_path_join(part_dir, name);
    struct stat info;
    bool is_file = lstat(path, &info) == 0 && S_ISREG(info.st_mode);

    rk_free(path);
    return is_file ? rk_ckpt_manifest_add_file(manifest, part_dir, name) : NULL;
}

struct rk_status *rk_ckpt_manifest_add_files(struct rk_ckpt_manifest *manifest, const char *part_dir,
                                             const char *sub_dir)
{
    char *dir = rk_path_join(part_dir, sub_dir);
    struct names names = {0};
    struct rk_status *st = list_names(&names, dir);

    for (int64_t i = 0; !st && i < names.items.count; i++) {
        char *name = rk_path_join(sub_dir, names.items.items[i]);

        st = add_file(manifest, part_dir, name);
        rk_free(name);
    }
    names_fini(&names);
    rk_free(dir);
    return st;
}

/* --- checkpoints that verl wrote --- */

struct rk_status *rk_ckpt_check_foreign(const char *part_dir)
{
    const char *backend = NULL;

    if (has_entry_below(part_dir, SHARDS_DIR, "", ".distcp") ||
        has_entry_below(part_dir, "model/" SHARDS_DIR, "", ".distcp") ||
        has_entry(part_dir, "ckpt_contents.json", "") || has_entry(part_dir, "transformer_config.json", ""))
        backend = "megatron";
    else if (has_entry(part_dir, "model_world_size_", ".pt") || has_entry(part_dir, "fsdp_config.json", ""))
        backend = "fsdp";
    if (!backend)
        return NULL;
    return RK_FAIL_REASON(
        RK_UNIMPLEMENTED, "FOREIGN_CHECKPOINT",
        "'%s' is a checkpoint of verl (%s), whose training state rankd does not read. Start "
        "from its weights: export them with 'python -m verl.model_merger merge --backend %s "
        "--local_dir %s --target_dir DIR' (or save with hf_model in "
        "checkpoint.save_contents) and give that Hugging Face directory as "
        "actor_rollout_ref.model.path",
        part_dir, backend, backend, part_dir);
}

/* --- removing --- */

/* Empties the directory that `fd` is, which it closes. `path` is for messages. */
static struct rk_status *empty_dir(int fd, const char *path, int depth)
{
    DIR *stream = depth < DEPTH_MAX ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    struct rk_status *st = NULL;

    if (!stream) {
        close(fd);
        return depth < DEPTH_MAX ? rk_file_errno("reading directory", path)
                                 : RK_FAIL(RK_INVALID_ARGUMENT, "'%s' has too many levels", path);
    }
    while (!st && (entry = readdir(stream))) {
        int child;

        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        child = openat(dirfd(stream), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child >= 0)
            st = empty_dir(child, path, depth + 1);
        if (!st && unlinkat(dirfd(stream), entry->d_name, child >= 0 ? AT_REMOVEDIR : 0) != 0 &&
            errno != ENOENT)
            st = rk_file_errno("removing from", path);
    }
    closedir(stream);
    return st;
}

static struct rk_status *remove_manifest(const char *part_dir)
{
    char *path = rk_path_join(part_dir, RK_CKPT_MANIFEST_FILE);
    struct rk_status *st = NULL;

    if (unlink(path) == 0)
        st = rk_file_sync_dir(part_dir);
    else if (errno != ENOENT && errno != ENOTDIR)
        st = rk_file_errno("removing", path);
    rk_free(path);
    return st;
}

static struct rk_status *remove_manifests(const char *path)
{
    struct names names = {0};
    struct rk_status *st = list_names(&names, path);

    if (!st)
        st = remove_manifest(path);
    for (int64_t i = 0; !st && i < names.items.count; i++) {
        char *child = rk_path_join(path, names.items.items[i]);
        struct stat info;

        if (lstat(child, &info) == 0 && S_ISDIR(info.st_mode))
            st = remove_manifest(child);
        rk_free(child);
    }
    names_fini(&names);
    return st;
}

struct rk_status *rk_ckpt_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct rk_status *st;

    if (fd < 0)
        return errno == ENOENT ? NULL : rk_file_errno("removing", path);
    st = remove_manifests(path);
    if (st) {
        close(fd);
        return st;
    }
    if (RK_FAULT("ckpt.remove")) {
        close(fd);
        return RK_FAIL(RK_INTERNAL, "fault point ckpt.remove");
    }
    RK_TRY(empty_dir(fd, path, 0));
    return rmdir(path) != 0 && errno != ENOENT ? rk_file_errno("removing", path) : NULL;
}

/* --- writing a part --- */

/* Makes the directory and those above it. */
static struct rk_status *make_dirs(const char *path)
{
    char *copy = rk_strdup(path);
    struct rk_status *st = NULL;
    struct stat info;

    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(copy, 0777); /* the last one tells whether all went well */
        *slash = '/';
    }
    if (mkdir(copy, 0777) != 0 && (errno != EEXIST || stat(copy, &info) != 0 || !S_ISDIR(info.st_mode)))
        st = rk_file_errno("creating directory", path);
    rk_free(copy);
    return st;
}

struct rk_status *rk_ckpt_check_target(const char *part_dir)
{
    struct names names = {0};
    struct stat info;
    bool is_ours;
    int64_t count;

    if (lstat(part_dir, &info) != 0)
        return errno == ENOENT ? NULL : rk_file_errno("looking at", part_dir);
    if (!S_ISDIR(info.st_mode))
        return RK_FAIL_REASON(RK_ALREADY_EXISTS, "TARGET_EXISTS", "'%s' is not a directory", part_dir);
    RK_TRY(list_names(&names, part_dir));
    count = names.items.count;
    names_fini(&names);
    is_ours = has_entry(part_dir, RK_CKPT_MANIFEST_FILE, "") ||
              has_entry_below(part_dir, SHARDS_DIR, "shard_", ".safetensors");
    if (count == 0 || is_ours)
        return NULL;
    return RK_FAIL_REASON(RK_ALREADY_EXISTS, "TARGET_EXISTS",
                          "'%s' exists and is not a checkpoint of rankd: choose another path, or remove it",
                          part_dir);
}

/* Removes temporary directories of the step: of one part, or of all when `name` is NULL. */
static struct rk_status *sweep_step(const char *step_dir, const char *name)
{
    char *prefix = name ? rk_format(RK_CKPT_TEMP_PREFIX "%s-", name) : rk_strdup(RK_CKPT_TEMP_PREFIX);
    struct names names = {0};
    struct rk_status *st = list_names(&names, step_dir);

    for (int64_t i = 0; !st && i < names.items.count; i++) {
        char *path;

        if (!rk_str_has_prefix(names.items.items[i], prefix))
            continue;
        path = rk_path_join(step_dir, names.items.items[i]);
        RK_INFO("removing '%s', which a save that was interrupted left", path);
        st = rk_ckpt_remove(path);
        rk_free(path);
    }
    names_fini(&names);
    rk_free(prefix);
    return st;
}

struct rk_status *rk_ckpt_begin(char **temp_dir, const char *part_dir, const char *token)
{
    const char *name = part_name(part_dir);
    char *step_dir, *path = NULL;
    struct rk_status *st;

    *temp_dir = NULL;
    if (!name)
        return RK_FAIL(RK_INVALID_ARGUMENT, "'%s' does not end with the name of a role", part_dir);
    step_dir = rk_path_dir(part_dir);
    RK_TRY_GOTO(st, rk_ckpt_check_target(part_dir), out);
    RK_TRY_GOTO(st, make_dirs(step_dir), out);
    RK_TRY_GOTO(st, sweep_step(step_dir, name), out);
    path = rk_format("%s/" RK_CKPT_TEMP_PREFIX "%s-%s", step_dir, name, token);
    if (mkdir(path, 0777) != 0)
        st = rk_file_errno("creating directory", path);
    if (!st) {
        *temp_dir = path;
        path = NULL;
    }

out:
    rk_free(path);
    rk_free(step_dir);
    return st;
}

/* The part has been published whether its predecessor can be removed or not: the next sweep tries again. */
static void remove_old(const char *path)
{
    struct rk_status *st = rk_ckpt_remove(path);

    if (st)
        RK_WARN("cannot remove the checkpoint that was replaced: %s", rk_status_message(st));
    rk_status_free(st);
}

/* *old becomes the name that the replaced part has now. On a file system that cannot swap two names there is
 * a moment in which no directory is named part_dir. */
static struct rk_status *replace(const char *temp_dir, const char *part_dir, char **old)
{
    struct rk_status *st = NULL;

    if (renameat2(AT_FDCWD, temp_dir, AT_FDCWD, part_dir, RENAME_EXCHANGE) == 0) {
        *old = rk_strdup(temp_dir);
        return NULL;
    }
    if (errno != EINVAL && errno != ENOSYS)
        return rk_file_errno("renaming to", part_dir);
    *old = rk_format("%s-old", temp_dir);
    if (rename(part_dir, *old) != 0) {
        st = rk_file_errno("renaming", part_dir);
    } else if (rename(temp_dir, part_dir) != 0) {
        st = rk_file_errno("renaming to", part_dir);
        (void)rename(*old, part_dir);
    }
    return st;
}

struct rk_status *rk_ckpt_publish(const char *temp_dir, const char *part_dir)
{
    char *step_dir = rk_path_dir(part_dir), *dir = rk_path_dir(step_dir), *old = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_ckpt_check_target(part_dir), out);
    RK_TRY_GOTO(st, rk_file_sync_dir(temp_dir), out);
    if (RK_FAULT("ckpt.rename")) {
        errno = EIO;
        st = rk_file_errno("renaming to", part_dir);
    } else if (rename(temp_dir, part_dir) != 0) {
        st = errno == ENOTEMPTY || errno == EEXIST ? replace(temp_dir, part_dir, &old)
                                                   : rk_file_errno("renaming to", part_dir);
    }
    if (!st)
        st = rk_file_sync_dir(step_dir);
    if (!st && old) /* only now does the new part survive a crash of the machine */
        remove_old(old);
    if (!st)
        st = rk_file_sync_dir(dir);

out:
    rk_free(old);
    rk_free(step_dir);
    rk_free(dir);
    return st;
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
    struct names names = {0};
    struct rk_status *st = list_names(&names, dir);

    *out = (struct rk_ckpt_steps){0};
    for (int64_t i = 0; i < names.items.count; i++) {
        int64_t step;

        if (rk_ckpt_step_parse(names.items.items[i], &step))
            rk_array_append(&out->steps, step);
    }
    names_fini(&names);
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

    if (!st && manifest.global_step != step)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s' is of global_step %lld", part_dir,
                            (long long)manifest.global_step);
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

        st = sweep_step(step_dir, NULL);
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
