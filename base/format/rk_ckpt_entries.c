/* The entries of a checkpoint's directory. */
#include "base/format/rk_ckpt_dir_internal.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/rk_file.h"
#include "base/rk_file_io.h"
#include "base/rk_str.h"

void rk_ckpt_names_fini(struct rk_ckpt_names *names)
{
    for (int64_t i = 0; i < names->items.count; i++)
        rk_free(names->items.items[i]);
    rk_array_fini(&names->items);
}

struct rk_status *rk_ckpt_list_names(struct rk_ckpt_names *out, const char *dir)
{
    DIR *entries = opendir(dir);
    const struct dirent *entry;
    struct rk_status *st;

    if (!entries)
        return errno == ENOENT ? NULL : rk_file_errno("reading directory", dir);
    while (errno = 0, (entry = readdir(entries))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rk_array_append(&out->items, rk_strdup(entry->d_name));
    }
    st = errno != 0 ? rk_file_errno("reading directory", dir) : NULL;
    closedir(entries);
    return st;
}

bool rk_ckpt_has_entry(const char *dir, const char *prefix, const char *suffix)
{
    struct rk_ckpt_names names = {0};
    struct rk_status *st = rk_ckpt_list_names(&names, dir);
    bool found = false;

    for (int64_t i = 0; i < names.items.count; i++)
        found = found || (rk_str_has_prefix(names.items.items[i], prefix) &&
                          rk_str_has_suffix(names.items.items[i], suffix));
    rk_ckpt_names_fini(&names);
    RK_IGNORE(st, "a directory that cannot be read has no known entry");
    return found;
}

bool rk_ckpt_has_entry_below(const char *dir, const char *below, const char *prefix, const char *suffix)
{
    char *path = rk_path_join(dir, below);
    bool found = rk_ckpt_has_entry(path, prefix, suffix);

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
    struct rk_ckpt_names names = {0};
    struct rk_status *st = rk_ckpt_list_names(&names, dir);

    for (int64_t i = 0; !st && i < names.items.count; i++) {
        char *name = rk_path_join(sub_dir, names.items.items[i]);

        st = add_file(manifest, part_dir, name);
        rk_free(name);
    }
    rk_ckpt_names_fini(&names);
    rk_free(dir);
    return st;
}

/* --- checkpoints written by verl --- */

struct rk_status *rk_ckpt_check_foreign(const char *part_dir)
{
    const char *backend = NULL;

    if (rk_ckpt_has_entry_below(part_dir, RK_CKPT_SHARDS_DIR, "", ".distcp") ||
        rk_ckpt_has_entry_below(part_dir, "model/" RK_CKPT_SHARDS_DIR, "", ".distcp") ||
        rk_ckpt_has_entry(part_dir, "ckpt_contents.json", "") ||
        rk_ckpt_has_entry(part_dir, "transformer_config.json", ""))
        backend = "megatron";
    else if (rk_ckpt_has_entry(part_dir, "model_world_size_", ".pt") ||
             rk_ckpt_has_entry(part_dir, "fsdp_config.json", ""))
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
