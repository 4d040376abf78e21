/* Checkpoints on disk, without daemons. */
#include "cmd/cmd_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/format/rk_safetensors.h"
#include "rl/rk_checkpoints.h"
#include "base/rk_file.h"

/* One part of a checkpoint, and whether it is complete. */
struct part {
    char *name;
    struct rk_ckpt_manifest manifest;
    struct rk_status *error; /* owned */
};

struct checkpoint {
    char *path; /* ".../global_step_<N>" */
    int64_t step;
    RK_ARRAY(struct part) parts; /* by name */
};

static void checkpoint_fini(struct checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->parts.count; i++) {
        struct part *part = &checkpoint->parts.items[i];

        rk_ckpt_manifest_fini(&part->manifest);
        rk_status_free(part->error);
        rk_free(part->name);
    }
    rk_array_fini(&checkpoint->parts);
    rk_free(checkpoint->path);
    *checkpoint = (struct checkpoint){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct part *)a)->name, ((const struct part *)b)->name);
}

static void add_part(struct checkpoint *checkpoint, const char *name, rk_ckpt_check_level_t level)
{
    struct part part = {.name = rk_strdup(name)};
    char *path = rk_path_join(checkpoint->path, name);
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        part.error = rk_ckpt_check(&part.manifest, path, level);
        if (part.error && strcmp(rk_status_reason(part.error), "NO_CHECKPOINT") != 0)
            RK_IGNORE(rk_ckpt_manifest_read(&part.manifest, path), "shows a damaged part as far as possible");
        rk_array_append(&checkpoint->parts, part);
        part.name = NULL;
    }
    rk_free(part.name);
    rk_free(path);
}

static struct rk_status *read_checkpoint(struct checkpoint *out, const char *path,
                                         rk_ckpt_check_level_t level)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    *out = (struct checkpoint){.path = rk_strdup(path)};
    if (!rk_ckpt_step_parse(path, &out->step)) {
        if (dir)
            closedir(dir);
        return RK_FAIL(RK_INVALID_ARGUMENT, "'%s': expected a directory global_step_<N>", path);
    }
    if (!dir)
        return rk_file_errno("cannot open", path);
    while ((entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.')
            add_part(out, entry->d_name, level);
    }
    closedir(dir);
    if (out->parts.count > 0)
        qsort(out->parts.items, (size_t)out->parts.count, sizeof(*out->parts.items), by_name);
    return NULL;
}

static const struct part *find_part(const struct checkpoint *checkpoint, const char *name)
{
    for (int64_t i = 0; i < checkpoint->parts.count; i++) {
        if (strcmp(checkpoint->parts.items[i].name, name) == 0)
            return &checkpoint->parts.items[i];
    }
    return NULL;
}

/* The reason why a run cannot resume from it automatically; "" when it can. rk_free it. */
static char *describe_problem(const struct checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->parts.count; i++) {
        if (checkpoint->parts.items[i].error)
            return rk_strdup(rk_status_message(checkpoint->parts.items[i].error));
    }
    if (!find_part(checkpoint, RK_CHECKPOINT_ACTOR))
        return rk_strdup("it has no part of the actor");
    if (!find_part(checkpoint, RK_CHECKPOINT_DRIVER))
        return rk_strdup("it has no driver's part: only trainer.resume_mode=resume_path accepts it");
    return rk_strdup("");
}

static uint64_t sum_bytes(const struct checkpoint *checkpoint)
{
    uint64_t bytes = 0;

    for (int64_t i = 0; i < checkpoint->parts.count; i++)
        bytes += rk_ckpt_manifest_bytes(&checkpoint->parts.items[i].manifest);
    return bytes;
}

/* The time when the driver saved it; NULL when it is unknown. Borrowed. */
static const char *saved_at(const struct checkpoint *checkpoint)
{
    const struct part *driver = find_part(checkpoint, RK_CHECKPOINT_DRIVER);

    return driver ? rk_json_as_string(rk_json_find(driver->manifest.state, "saved_at"), NULL) : NULL;
}

/* "actor, driver"; rk_free it. */
static char *join_parts(const struct checkpoint *checkpoint)
{
    struct rk_str text = {0};

    rk_str_append(&text, "");
    for (int64_t i = 0; i < checkpoint->parts.count; i++)
        rk_str_appendf(&text, "%s%s", i ? "," : "", checkpoint->parts.items[i].name);
    return rk_str_take(&text);
}

static struct rk_json *string_or_null(const char *text)
{
    return text && *text ? rk_json_new_string(text) : rk_json_new_null();
}

/* --- list --- */

static void list_row(struct rk_table *table, const struct checkpoint *checkpoint, bool is_latest)
{
    char *parts = join_parts(checkpoint), *problem = describe_problem(checkpoint);

    rk_table_addf(table, "%" PRId64 "%s", checkpoint->step, is_latest ? "*" : "");
    rk_table_add(table, saved_at(checkpoint));
    rk_table_add(table, parts);
    rk_table_addf(table, "%.1f", (double)sum_bytes(checkpoint) / (1 << 20));
    rk_table_add(table, *problem ? problem : "complete");
    rk_free(problem);
    rk_free(parts);
}

static struct rk_json *list_item(const struct checkpoint *checkpoint)
{
    struct rk_json *item = rk_json_new_object(), *parts = rk_json_new_array();
    char *problem = describe_problem(checkpoint);

    for (int64_t i = 0; i < checkpoint->parts.count; i++)
        rk_json_append(parts, rk_json_new_string(checkpoint->parts.items[i].name));
    rk_json_set(item, "step", rk_json_new_int(checkpoint->step));
    rk_json_set(item, "path", rk_json_new_string(checkpoint->path));
    rk_json_set(item, "saved_at", string_or_null(saved_at(checkpoint)));
    rk_json_set(item, "parts", parts);
    rk_json_set(item, "bytes", rk_json_new_int((int64_t)sum_bytes(checkpoint)));
    rk_json_set(item, "is_complete", rk_json_new_bool(!*problem));
    rk_json_set(item, "problem", string_or_null(problem));
    rk_free(problem);
    return item;
}

static struct rk_status *list_all(const struct rk_cli *cli, const char *dir,
                                  const struct rk_ckpt_steps *steps)
{
    static const char *const titles[] = {"STEP", "SAVED AT", "PARTS", "MiB", "STATE"};
    struct rk_json *body = rk_json_new_object(), *items = rk_json_new_array();
    struct rk_status *st = NULL;
    struct rk_table table;
    int64_t tracked = -1;

    RK_IGNORE(rk_ckpt_tracker_read(&tracked, dir), "it names no step, then");
    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int64_t i = 0; i < steps->steps.count && !st; i++) {
        char *path = rk_ckpt_step_dir(dir, steps->steps.items[i]);
        struct checkpoint checkpoint;

        st = read_checkpoint(&checkpoint, path, RK_CKPT_CHECK_SIZES);
        if (!st) {
            list_row(&table, &checkpoint, checkpoint.step == tracked);
            rk_json_append(items, list_item(&checkpoint));
        }
        checkpoint_fini(&checkpoint);
        rk_free(path);
    }
    rk_json_set(body, "dir", rk_json_new_string(dir));
    rk_json_set(body, "latest", tracked >= 0 ? rk_json_new_int(tracked) : rk_json_new_null());
    rk_json_set(body, "checkpoints", items);
    if (!st && rk_cli_is_json(cli))
        rk_cli_print_json("CheckpointList", rk_json_retain(body));
    rk_table_print(&table, !st && !rk_cli_is_json(cli) ? stdout : NULL);
    rk_json_free(body);
    return st;
}

/* Lists the checkpoints in `dir`, or else the checkpoints of a run directory. */
static struct rk_status *find_steps(struct rk_ckpt_steps *steps, char **dir)
{
    char *below = rk_path_join(*dir, RK_RUN_CHECKPOINTS);
    struct rk_status *st = rk_ckpt_list(steps, *dir);
    struct stat info;

    if (!st && steps->steps.count == 0 && stat(below, &info) == 0) {
        rk_free(*dir);
        *dir = below;
        return rk_ckpt_list(steps, below);
    }
    rk_free(below);
    return st;
}

static struct rk_status *run_list(struct rk_cli *cli)
{
    char *dir = rk_strdup(cli->line.args.items[0]);
    struct rk_ckpt_steps steps = {0};
    struct rk_status *st;
    struct stat info;

    st = stat(dir, &info) == 0 ? find_steps(&steps, &dir) : rk_cli_usage(rk_file_errno("cannot open", dir));
    if (!st && steps.steps.count == 0)
        fprintf(stderr,
                "rankctl: no checkpoint (global_step_<N>) in '%s'; expected trainer.default_local_dir of a "
                "run, or "
                "in " RK_RUN_CHECKPOINTS "/ of the run directory\n",
                dir);
    if (!st)
        st = list_all(cli, dir, &steps);
    rk_ckpt_steps_fini(&steps);
    rk_free(dir);
    return st;
}

/* --- inspect --- */

/* Tensors of the shards, or -1 when a file cannot be read. */
static int64_t count_tensors(const struct checkpoint *checkpoint, const struct part *part)
{
    int64_t count = 0;

    for (int64_t i = 0; i < part->manifest.files.count && count >= 0; i++) {
        const char *name = part->manifest.files.items[i].name;
        char *path = rk_format("%s/%s/%s", checkpoint->path, part->name, name);
        struct rk_st_file *file = NULL;
        struct rk_status *st = NULL;

        if (rk_str_has_suffix(name, ".safetensors"))
            st = rk_st_open(&file, path);
        count = st ? -1 : count + (file ? rk_st_count(file) : 0);
        rk_status_free(st);
        rk_st_close(file);
        rk_free(path);
    }
    return count;
}

static struct rk_json *part_json(const struct checkpoint *checkpoint, const struct part *part)
{
    const struct rk_ckpt_manifest *manifest = &part->manifest;
    struct rk_json *item = rk_json_new_object(), *contents = rk_json_new_array(),
                   *files = rk_json_new_array();

    for (int64_t i = 0; i < manifest->contents.count; i++)
        rk_json_append(contents, rk_json_new_string(manifest->contents.items[i]));
    for (int64_t i = 0; i < manifest->files.count; i++) {
        struct rk_json *file = rk_json_new_object();

        rk_json_set(file, "name", rk_json_new_string(manifest->files.items[i].name));
        rk_json_set(file, "bytes", rk_json_new_int((int64_t)manifest->files.items[i].bytes));
        rk_json_append(files, file);
    }
    rk_json_set(item, "part", rk_json_new_string(part->name));
    rk_json_set(item, "contents", contents);
    rk_json_set(item, "bytes", rk_json_new_int((int64_t)rk_ckpt_manifest_bytes(manifest)));
    rk_json_set(item, "tensors", rk_json_new_int(count_tensors(checkpoint, part)));
    rk_json_set(item, "layout", manifest->layout ? rk_json_clone(manifest->layout) : rk_json_new_null());
    rk_json_set(item, "state", manifest->state ? rk_json_clone(manifest->state) : rk_json_new_null());
    rk_json_set(item, "files", files);
    rk_json_set(item, "error", part->error ? rk_cli_status_json(part->error) : rk_json_new_null());
    return item;
}

/* Values that fit on a line: scalars, and objects of scalars such as a mesh. */
static void print_members(const char *title, const struct rk_json *object)
{
    for (void *it = object ? rk_json_iter(object) : NULL; it; it = rk_json_iter_next(object, it)) {
        const struct rk_json *value = rk_json_iter_value(it);
        char *text = rk_json_dump(value, 0, false), *shown = rk_cli_printable(text);

        printf("  %s.%s: %.120s%s\n", title, rk_json_iter_key(it), shown, strlen(shown) > 120 ? "..." : "");
        rk_free(shown);
        rk_free(text);
    }
}

static void print_part(const struct checkpoint *checkpoint, const struct part *part, bool is_verified)
{
    const struct rk_ckpt_manifest *manifest = &part->manifest;

    printf("%s: %s\n", part->name,
           part->error   ? rk_status_message(part->error)
           : is_verified ? "complete, all checksums are correct"
                         : "complete");
    printf("  contents:");
    for (int64_t i = 0; i < manifest->contents.count; i++)
        printf(" %s", manifest->contents.items[i]);
    printf("\n  files: %" PRId64 ", %.1f MiB, %" PRId64 " tensors\n", manifest->files.count,
           (double)rk_ckpt_manifest_bytes(manifest) / (1 << 20), count_tensors(checkpoint, part));
    print_members("layout", manifest->layout);
    print_members("state", manifest->state);
}

static struct rk_status *first_error(const struct checkpoint *checkpoint)
{
    for (int64_t i = 0; i < checkpoint->parts.count; i++) {
        if (checkpoint->parts.items[i].error)
            return rk_status_clone(checkpoint->parts.items[i].error);
    }
    if (!find_part(checkpoint, RK_CHECKPOINT_ACTOR))
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_CHECKPOINT", "'%s' has no part of the actor",
                              checkpoint->path);
    return NULL;
}

static void print_checkpoint(struct rk_cli *cli, const struct checkpoint *checkpoint)
{
    struct rk_json *body, *parts;

    if (!rk_cli_is_json(cli)) {
        printf("%s: step %" PRId64 "\n", checkpoint->path, checkpoint->step);
        for (int64_t i = 0; i < checkpoint->parts.count; i++)
            print_part(checkpoint, &checkpoint->parts.items[i], rk_cli_has(cli, "verify"));
        return;
    }
    body = rk_json_new_object();
    parts = rk_json_new_array();
    for (int64_t i = 0; i < checkpoint->parts.count; i++)
        rk_json_append(parts, part_json(checkpoint, &checkpoint->parts.items[i]));
    rk_json_set(body, "path", rk_json_new_string(checkpoint->path));
    rk_json_set(body, "step", rk_json_new_int(checkpoint->step));
    rk_json_set(body, "is_verified", rk_json_new_bool(rk_cli_has(cli, "verify")));
    rk_json_set(body, "parts", parts);
    rk_cli_print_json("Checkpoint", body);
    cli->has_told = true;
}

static struct rk_status *run_inspect(struct rk_cli *cli)
{
    struct checkpoint checkpoint;
    struct rk_status *st =
        read_checkpoint(&checkpoint, cli->line.args.items[0],
                        rk_cli_has(cli, "verify") ? RK_CKPT_CHECK_CHECKSUMS : RK_CKPT_CHECK_SIZES);

    if (st) {
        st = rk_cli_usage(st);
    } else {
        print_checkpoint(cli, &checkpoint);
        st = first_error(&checkpoint);
    }
    checkpoint_fini(&checkpoint);
    return st;
}

static const struct rk_option inspect_options[] = {
    {"verify", NULL, "read all files, verify their checksums, and that their pieces make whole tensors"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_checkpoint_list = {
    .name = "checkpoint list",
    .args = "DIR",
    .min_args = 1,
    .max_args = 1,
    .summary = "show the checkpoints in a directory",
    .details =
        "DIR is trainer.default_local_dir of a run, or its run directory; * marks the step that the tracker "
        "file names.",
    .run = run_list,
};

const struct rk_command rk_cmd_checkpoint_inspect = {
    .name = "checkpoint inspect",
    .args = "DIR/global_step_<N>",
    .min_args = 1,
    .max_args = 1,
    .summary = "show the contents of one checkpoint, and whether it is complete",
    .details = "Exits with code 1 when a part is incomplete or damaged.",
    .options = inspect_options,
    .run = run_inspect,
};
