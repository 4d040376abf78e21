#include "engine/ckpt/ckpt_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_file_kind.h"
#include "base/rk_log.h"
#include "base/rk_map.h"
#include "base/rk_str.h"

/* Published indices are below 10 MB; 64 MiB would list half a million tensors. */
#define INDEX_BYTES_MAX ((size_t)64 << 20)
/* Maximum number of weight files: all stay open while a model is read. */
#define FILES_MAX          4096
#define RK_HF_SCALE_SUFFIX "_scale_inv"
/* Bytes of tensors that are compared at a time. */
#define COMPARED_BYTES ((size_t)1 << 20)
/* Maximum number of names in a warning. */
#define SHOWN_MAX 3

struct rk_hf_dir {
    char *path;
    struct rk_map *files;   /* file name -> struct rk_st_file, owned */
    struct rk_map *tensors; /* tensor name -> struct rk_st_file, borrowed */
};

/* Opens a file of the directory unless it is open. */
static struct rk_status *open_file(struct rk_hf_dir *dir, const char *name, struct rk_st_file **out)
{
    char *path;
    struct rk_status *st;

    *out = rk_map_find(dir->files, name);
    if (*out)
        return NULL;
    if (rk_map_count(dir->files) >= FILES_MAX)
        return RK_FAIL(RK_DATA_LOSS, "more than %d weight files", FILES_MAX);
    path = rk_path_join(dir->path, name);
    st = rk_st_open(out, path);
    rk_free(path);
    if (!st)
        rk_map_put(dir->files, name, *out);
    return st;
}

/* Rejects paths: an index must not refer outside of its directory. */
static bool is_bare_name(const char *name)
{
    return name[0] != '\0' && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strpbrk(name, "/\\");
}

static struct rk_status *read_index(struct rk_hf_dir *dir, const struct rk_json *index)
{
    const struct rk_json *weight_map = rk_json_find(index, "weight_map");

    if (!weight_map || rk_json_type(weight_map) != RK_JSON_OBJECT)
        return RK_FAIL(RK_DATA_LOSS, RK_HF_INDEX_FILE ": weight_map: expected an object");
    for (void *it = rk_json_iter(weight_map); it; it = rk_json_iter_next(weight_map, it)) {
        const char *file_name = rk_json_as_string(rk_json_iter_value(it), "");
        struct rk_st_file *file;

        if (!is_bare_name(file_name))
            return RK_FAIL(RK_DATA_LOSS, RK_HF_INDEX_FILE ": weight_map: %.96s: expected a bare file name",
                           rk_json_iter_key(it));
        RK_TRY(open_file(dir, file_name, &file));
        rk_map_put(dir->tensors, rk_json_iter_key(it), file);
    }
    return NULL;
}

static struct rk_status *add_tensors(struct rk_hf_dir *dir, const char *file_name)
{
    struct rk_st_file *file;

    RK_TRY(open_file(dir, file_name, &file));
    for (int64_t i = 0; i < rk_st_count(file); i++) {
        const char *name = rk_st_at(file, i)->name;
        const struct rk_st_file *other = rk_map_put(dir->tensors, name, file);

        if (other)
            return RK_FAIL(RK_DATA_LOSS, "tensor '%.96s' is in %s and in %s", name, rk_st_path(other),
                           rk_st_path(file));
    }
    return NULL;
}

/* Names of the directory's weight files. */
struct listing {
    RK_ARRAY(char *) names;
};

static void listing_fini(struct listing *listing)
{
    for (int64_t i = 0; i < listing->names.count; i++)
        rk_free(listing->names.items[i]);
    rk_array_fini(&listing->names);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static struct rk_status *list(const char *path, struct listing *out)
{
    DIR *stream = opendir(path);
    const struct dirent *entry;

    if (!stream)
        return RK_FAIL(errno == EACCES ? RK_PERMISSION_DENIED : RK_NOT_FOUND, "%s", strerror(errno));
    while ((entry = readdir(stream))) {
        if (rk_str_has_suffix(entry->d_name, ".safetensors"))
            rk_array_append(&out->names, rk_strdup(entry->d_name));
    }
    closedir(stream);
    if (out->names.count > 1)
        qsort(out->names.items, (size_t)out->names.count, sizeof(*out->names.items), compare_names);
    return NULL;
}

static struct rk_status *add_listed(struct rk_hf_dir *dir)
{
    struct listing listing = {0};
    struct rk_status *st = list(dir->path, &listing);

    if (!st && listing.names.count == 0)
        st = RK_FAIL(RK_NOT_FOUND,
                     "no *.safetensors file: expected those of the model, as Hugging Face has them");
    for (int64_t i = 0; !st && i < listing.names.count; i++)
        st = add_tensors(dir, listing.names.items[i]);
    listing_fini(&listing);
    return st;
}

static bool exists(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    bool found = access(path, F_OK) == 0;

    rk_free(path);
    return found;
}

/* Maps the parser's error codes to DATA_LOSS: an index that is not JSON is a damaged file. */
static struct rk_status *parse_index(struct rk_json **out, const char *path)
{
    struct rk_status *st = rk_json_parse_file(out, path, INDEX_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL), *bad;

    if (rk_status_code(st) != RK_INVALID_ARGUMENT)
        return st;
    bad = RK_FAIL(RK_DATA_LOSS, "%s", rk_status_message(st));
    rk_status_free(st);
    return bad;
}

static struct rk_status *read_dir(struct rk_hf_dir *dir)
{
    struct rk_json *index;
    struct rk_status *st;
    char *path;

    if (exists(dir->path, RK_HF_SINGLE_FILE)) {
        if (exists(dir->path, RK_HF_INDEX_FILE))
            RK_WARN("model directory '%s': reading " RK_HF_SINGLE_FILE
                    " and not the files that " RK_HF_INDEX_FILE " lists, as transformers does",
                    dir->path);
        return add_tensors(dir, RK_HF_SINGLE_FILE);
    }
    if (!exists(dir->path, RK_HF_INDEX_FILE))
        return add_listed(dir);
    path = rk_path_join(dir->path, RK_HF_INDEX_FILE);
    st = parse_index(&index, path);
    rk_free(path);
    if (st)
        return st;
    st = read_index(dir, index);
    rk_json_free(index);
    return st;
}

struct rk_status *rk_hf_dir_open(struct rk_hf_dir **out, const char *path)
{
    struct rk_hf_dir *dir = rk_calloc(1, sizeof(*dir));
    struct rk_status *st;
    char *kind;

    *out = NULL;
    dir->path = rk_strdup(path);
    dir->files = rk_map_create();
    dir->tensors = rk_map_create();
    kind = rk_model_dir_kind(path);
    st = kind ? RK_FAIL(RK_UNIMPLEMENTED, "'%s' %s", path, kind) : read_dir(dir);
    if (st) {
        rk_hf_dir_close(dir);
        if (!kind)
            st = RK_WRAP(st, "model directory '%s'", path);
        rk_free(kind);
        return st;
    }
    *out = dir;
    return NULL;
}

void rk_hf_dir_close(struct rk_hf_dir *dir)
{
    if (!dir)
        return;
    for (int64_t i = 0; i < rk_map_count(dir->files); i++)
        rk_st_close(rk_map_value_at(dir->files, i));
    rk_map_destroy(dir->files);
    rk_map_destroy(dir->tensors);
    rk_free(dir->path);
    rk_free(dir);
}

/* The first of the parameter's names that a file has; the stack's comes last. NULL: none. */
static const char *find_name(const struct rk_hf_dir *dir, const struct rk_param *param, bool *is_stack)
{
    const char *const names[] = {param->name, param->alias, param->stack.name};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        *is_stack = names[i] == param->stack.name;
        if (*names[i] && rk_map_find(dir->tensors, names[i]))
            return names[i];
    }
    return NULL;
}

static struct rk_status *find_tensor(const struct rk_hf_dir *dir, const char *name,
                                     const struct rk_st_file **file, const struct rk_st_tensor **tensor)
{
    *file = rk_map_find(dir->tensors, name);
    if (!*file)
        return RK_FAIL(RK_NOT_FOUND, "tensor '%s' is in no weight file of '%s'", name, dir->path);
    *tensor = rk_st_find(*file, name);
    if (!*tensor)
        return RK_FAIL(RK_NOT_FOUND, "tensor '%s' is not in '%s', where " RK_HF_INDEX_FILE " says it is",
                       name, rk_st_path(*file));
    return NULL;
}

/* The error for a parameter that has another name in some files, as part of a stack. */
static struct rk_status *tell_missing(const struct rk_hf_dir *dir, const struct rk_param *param)
{
    return RK_FAIL(RK_NOT_FOUND, "tensor '%s' is in no weight file of '%s', and neither is the stack '%s'",
                   param->name, dir->path, param->stack.name);
}

static int64_t num_scales(int64_t size)
{
    return (size + RK_HF_SCALE_BLOCK - 1) / RK_HF_SCALE_BLOCK;
}

/* X.weight has its scales in X.weight_scale_inv. */
static struct rk_status *find_scale(const struct rk_hf_dir *dir, struct rk_hf_tensor *out)
{
    const struct rk_st_tensor *tensor = out->tensor;
    const int64_t rows = num_scales(tensor->shape[0]), cols = num_scales(tensor->shape[1]);
    char *name;
    struct rk_status *st;

    if (tensor->rank != 2)
        return RK_FAIL(RK_UNIMPLEMENTED, "tensor '%s' in '%s' is F8_E4M3 and of rank %d, expected 2",
                       tensor->name, rk_st_path(out->file), tensor->rank);
    name = rk_format("%s" RK_HF_SCALE_SUFFIX, tensor->name);
    st = find_tensor(dir, name, &out->scale_file, &out->scale);
    if (st)
        st = RK_WRAP(st, "tensor '%s' is F8_E4M3", tensor->name);
    else if (out->scale->rank != 2 || out->scale->shape[0] != rows || out->scale->shape[1] != cols)
        st = RK_FAIL(
            RK_INVALID_ARGUMENT,
            "tensor '%s' in '%s' has rank %d and shape [%lld, %lld], expected [%lld, %lld]: a scale for "
            "each block of %d x %d of [%lld, %lld]",
            name, rk_st_path(out->scale_file), out->scale->rank, (long long)out->scale->shape[0],
            (long long)(out->scale->rank > 1 ? out->scale->shape[1] : 1), (long long)rows, (long long)cols,
            RK_HF_SCALE_BLOCK, RK_HF_SCALE_BLOCK, (long long)tensor->shape[0], (long long)tensor->shape[1]);
    else if (out->scale->dtype != RK_DTYPE_F32)
        st = RK_FAIL(RK_UNIMPLEMENTED, "tensor '%s' in '%s' is %s, expected F32", name,
                     rk_st_path(out->scale_file), rk_dtype_safetensors_name(out->scale->dtype));
    rk_free(name);
    return st;
}

struct rk_status *rk_hf_dir_find(const struct rk_hf_dir *dir, const struct rk_param *param,
                                 struct rk_hf_tensor *out)
{
    const char *name;

    *out = (struct rk_hf_tensor){0};
    name = find_name(dir, param, &out->is_stack);
    if (!name && *param->stack.name)
        return tell_missing(dir, param);
    RK_TRY(find_tensor(dir, name ? name : param->name, &out->file, &out->tensor));
    return out->tensor->dtype == RK_DTYPE_F8E4M3 ? find_scale(dir, out) : NULL;
}

static bool have_same_form(const struct rk_st_tensor *a, const struct rk_st_tensor *b)
{
    return a->dtype == b->dtype && a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(*a->shape)) == 0;
}

/* Compares the values in blocks. */
static struct rk_status *compare_tensors(const struct rk_hf_tensor *a, const struct rk_hf_tensor *b,
                                         bool *is_same)
{
    char *blocks = rk_malloc((size_t)2 * COMPARED_BYTES);
    uint64_t bytes = a->tensor->bytes;
    struct rk_status *st = NULL;

    *is_same = have_same_form(a->tensor, b->tensor);
    for (uint64_t at = 0; at < bytes && *is_same && !st; at += COMPARED_BYTES) {
        size_t count = (size_t)RK_MIN(bytes - at, COMPARED_BYTES);

        st = rk_st_read(a->file, a->tensor, at, count, blocks);
        if (!st)
            st = rk_st_read(b->file, b->tensor, at, count, blocks + COMPARED_BYTES);
        *is_same = !st && memcmp(blocks, blocks + COMPARED_BYTES, count) == 0;
    }
    rk_free(blocks);
    return st;
}

struct rk_status *rk_hf_dir_check_tied(const struct rk_hf_dir *dir, const struct rk_param *param)
{
    struct rk_hf_tensor tensors[2] = {0};
    bool is_same;

    if (!*param->alias || !rk_map_find(dir->tensors, param->name) || !rk_map_find(dir->tensors, param->alias))
        return NULL;
    RK_TRY(find_tensor(dir, param->name, &tensors[0].file, &tensors[0].tensor));
    RK_TRY(find_tensor(dir, param->alias, &tensors[1].file, &tensors[1].tensor));
    RK_TRY(compare_tensors(&tensors[0], &tensors[1], &is_same));
    if (is_same)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "'%s' and '%s' in '%s' differ, but " RK_HF_CONFIG_FILE
                   " has tie_word_embeddings=true; transformers does not tie them then: set it to false",
                   param->name, param->alias, dir->path);
}

const char *rk_hf_dir_path(const struct rk_hf_dir *dir)
{
    return dir->path;
}

bool rk_hf_dir_has(const struct rk_hf_dir *dir, const struct rk_param *param)
{
    bool is_stack;

    return find_name(dir, param, &is_stack) != NULL;
}

/* Constants that old checkpoints contain. */
static bool is_constant(const char *name)
{
    return rk_str_has_suffix(name, ".rotary_emb.inv_freq");
}

/* Scales of a matrix that is read. */
static bool is_scale(const struct rk_map *used, const char *name)
{
    char *of;
    bool is_used;

    if (!rk_str_has_suffix(name, RK_HF_SCALE_SUFFIX))
        return false;
    of = rk_strdup(name);
    of[strlen(of) - strlen(RK_HF_SCALE_SUFFIX)] = '\0';
    is_used = rk_map_find(used, of) != NULL;
    rk_free(of);
    return is_used;
}

/* Whether the name is of a layer after the model's, for multi-token prediction. */
static bool is_of_prediction(const struct rk_model_config *config, const char *name)
{
    static const char prefix[] = "model.layers.";
    char *end;
    long layer;

    if (!rk_str_has_prefix(name, prefix))
        return false;
    layer = strtol(name + sizeof(prefix) - 1, &end, 10);
    return *end == '.' && layer >= config->num_layers &&
           layer < config->num_layers + config->num_nextn_predict_layers;
}

void rk_hf_dir_warn_unused(const struct rk_hf_dir *dir, const struct rk_model_core *core)
{
    const struct rk_param_table *params = &core->params;
    struct rk_map *used = rk_map_create();
    struct rk_str names = {0};
    int64_t num_unused = 0, num_predicting = 0;

    for (int64_t i = 0; i < params->count; i++) {
        rk_map_put(used, rk_params_at(params, i)->name, used);
        rk_map_put(used, rk_params_at(params, i)->alias, used);
        rk_map_put(used, rk_params_at(params, i)->stack.name, used);
    }
    for (int64_t i = 0; i < rk_map_count(dir->tensors); i++) {
        const char *name = rk_map_key_at(dir->tensors, i);

        if (rk_map_find(used, name) || is_constant(name) || is_scale(used, name))
            continue;
        if (is_of_prediction(&core->config, name)) {
            num_predicting++;
            continue;
        }
        if (num_unused++ < SHOWN_MAX)
            rk_str_appendf(&names, "%s%.96s", num_unused > 1 ? ", " : "", name);
    }
    if (num_predicting > 0)
        RK_WARN("model directory '%s': skipping %lld tensors of multi-token prediction "
                "(num_nextn_predict_layers=%lld)",
                dir->path, (long long)num_predicting, (long long)core->config.num_nextn_predict_layers);
    if (num_unused > 0)
        RK_WARN("model directory '%s': ignoring %lld of %lld tensors that " RK_HF_CONFIG_FILE
                " does not define: %s%s",
                dir->path, (long long)num_unused, (long long)rk_map_count(dir->tensors), rk_str_text(&names),
                num_unused > SHOWN_MAX ? ", ..." : "");
    rk_str_fini(&names);
    rk_map_destroy(used);
}
