#include "base/rk_file_kind.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_str.h"

#define ADAPTER_FILE      "adapter_config.json"
#define ADAPTER_BYTES_MAX (1 << 20)

#define TO_SAFETENSORS                                                                                   \
    "write the model as safetensors with transformers: AutoModelForCausalLM.from_pretrained(DIR), then " \
    "save_pretrained(NEW_DIR)"

#define IS_HTML \
    "is an HTML page, as a download without access or from a wrong address gives: download it again"

#define IS_GGUF "is a GGUF file, which is not read: use the model's directory with *.safetensors files"

/* --- files --- */

const char *rk_file_kind_of(const void *data, size_t bytes)
{
    static const struct {
        const char *head, *kind;
        bool is_text; /* in letters of any case, behind white space */
    } heads[] = {
        {"version https://git-lfs",
         "is a git-lfs pointer, not the file itself: run 'git lfs pull' in the directory", false},
        {"<!doctype html", IS_HTML, true},
        {"<html", IS_HTML, true},
        {"GGUF", IS_GGUF, false},
        {"PK\003\004", "is a pickled file of PyTorch, which is not read: " TO_SAFETENSORS, false},
        {"\200\002", "is a pickled file of PyTorch, which is not read: " TO_SAFETENSORS, false},
        {"\211HDF", "is an HDF5 file (TensorFlow), which is not read: " TO_SAFETENSORS, false},
    };
    const char *text = data;
    size_t space = 0;

    if (bytes == 0)
        return "is empty: download it again";
    if (bytes > 8 && text[8] == '{' &&
        memcmp(text + 4, "\0\0\0\0", 4) == 0) /* safetensors: a length, then JSON */
        return NULL;
    while (space < bytes && strchr(" \t\r\n", text[space]) && text[space] != '\0')
        space++;
    for (size_t i = 0; i < RK_ARRAY_LEN(heads); i++) {
        size_t length = strlen(heads[i].head), skipped = heads[i].is_text ? space : 0;

        if (bytes - skipped < length)
            continue;
        if (heads[i].is_text ? strncasecmp(text + skipped, heads[i].head, length) == 0
                             : memcmp(text, heads[i].head, length) == 0)
            return heads[i].kind;
    }
    return NULL;
}

const char *rk_file_kind(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char head[RK_FILE_KIND_BYTES];
    struct stat info;
    ssize_t bytes = -1;

    if (fd < 0)
        return NULL;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        bytes = read(fd, head, sizeof(head));
    close(fd);
    return bytes < 0 ? NULL : rk_file_kind_of(head, (size_t)bytes);
}

/* --- directories --- */

/* A kind of file that a directory may have, and what is said of one: "WHAT (NAME)ADVICE". */
struct pattern {
    const char *prefix, *suffix;
    const char *what, *advice;
};

static bool matches(const char *name, const struct pattern *pattern)
{
    return rk_str_has_prefix(name, pattern->prefix) && rk_str_has_suffix(name, pattern->suffix);
}

/* *row receives the smallest row that a name of the directory matches; NULL: none. Returns what is said of
 * that file (rk_free); NULL: nothing, as the row has no advice or there is none. */
static char *first_kind(const char *path, const struct pattern *patterns, int num_patterns,
                        const struct pattern **row)
{
    DIR *stream = opendir(path);
    const struct dirent *entry;
    char name[256] = "";
    int first = num_patterns;

    while (stream && (entry = readdir(stream))) {
        int i = 0;

        while (i < first && !matches(entry->d_name, &patterns[i]))
            i++;
        if (i < first) {
            first = i;
            snprintf(name, sizeof(name), "%s", entry->d_name);
        }
    }
    if (stream)
        closedir(stream);
    *row = first < num_patterns ? &patterns[first] : NULL;
    if (!*row || !(*row)->advice)
        return NULL;
    return rk_format("%s (%s)%s", (*row)->what, name, (*row)->advice);
}

static char *adapter_kind(const char *path)
{
    char *file = rk_path_join(path, ADAPTER_FILE), *kind;
    struct rk_json *config = NULL;
    struct rk_status *st = rk_json_parse_file(&config, file, ADAPTER_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);
    const char *base = rk_json_as_string(rk_json_find(config, "base_model_name_or_path"), NULL);

    kind = rk_format("is an adapter (" ADAPTER_FILE
                     "), not a model: merge it into its base model %s%s%sfirst (peft: "
                     "merge_and_unload, then save_pretrained)",
                     base ? "'" : "", base ? base : "", base ? "' " : "");
    rk_status_free(st);
    rk_json_free(config);
    rk_free(file);
    return kind;
}

/* Kind of a path that is a file. */
static char *model_file_kind(const char *path)
{
    const char *kind = rk_str_has_suffix(path, ".safetensors") ? NULL : rk_file_kind(path);

    return rk_strdup(kind ? kind : "is a file: expected the model's directory");
}

/* Kind of the first weight file that is something else, among those that would be read. */
static char *weights_kind(const char *path)
{
    static const char single[] = "model.safetensors";
    char *file = rk_path_join(path, single), *found = NULL;
    bool has_single = access(file, F_OK) == 0;
    DIR *stream = opendir(path);
    const struct dirent *entry;

    rk_free(file);
    while (stream && !found && (entry = readdir(stream))) {
        const char *name = entry->d_name, *kind;

        if (has_single ? strcmp(name, single) != 0
                       : !rk_str_has_prefix(name, "model") || !rk_str_has_suffix(name, ".safetensors"))
            continue;
        file = rk_path_join(path, name);
        kind = rk_file_kind(file);
        if (kind)
            found = rk_format("has a file %s that %s", name, kind);
        rk_free(file);
    }
    if (stream)
        closedir(stream);
    return found;
}

#define NOT_READ ", which is not read: "

char *rk_model_dir_kind(const char *path)
{
    /* The first row that matches a file counts; rows without words are weights, which are read. */
    static const struct pattern patterns[] = {
        {"model", ".safetensors", NULL, NULL},
        {"", ".safetensors.index.json", NULL, NULL},
        {ADAPTER_FILE, "", "adapter", NULL},
        {"consolidated", ".safetensors", "has weights in Mistral's own format",
         NOT_READ "use the files of Hugging Face's format, config.json and model*.safetensors"},
        {"", ".safetensors", NULL, NULL},
        {"", ".gguf", "has a GGUF file", NOT_READ "use the model's directory with *.safetensors files"},
        {"model_world_size_", ".pt", "has a checkpoint of verl's FSDP engine",
         NOT_READ "merge it with python3 -m verl.model_merger"},
        {"pytorch_model", ".bin", "has pickled weights", NOT_READ TO_SAFETENSORS},
        {"", ".pth", "has pickled weights", NOT_READ TO_SAFETENSORS},
        {"", ".pt", "has pickled weights", NOT_READ TO_SAFETENSORS},
        {"tf_model", ".h5", "has weights of TensorFlow", NOT_READ TO_SAFETENSORS},
        {"flax_model", ".msgpack", "has weights of Flax", NOT_READ TO_SAFETENSORS},
    };
    const struct pattern *row;
    struct stat info;
    char *kind;

    if (stat(path, &info) != 0) /* of another host, or misspelled; never a model */
        return rk_str_has_suffix(path, ".gguf") ? rk_strdup(IS_GGUF) : NULL;
    if (!S_ISDIR(info.st_mode))
        return model_file_kind(path);
    kind = first_kind(path, patterns, RK_ARRAY_LEN(patterns), &row);
    if (kind)
        return kind;
    return row && row->what ? adapter_kind(path) : weights_kind(path);
}

#define WITH_TRANSFORMERS ": write one with transformers"
#define BY_SAVING         WITH_TRANSFORMERS ": AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
#define FROM_TIKTOKEN                                                                                   \
    WITH_TRANSFORMERS " (packages tiktoken, blobfile): tokenizer = AutoTokenizer.from_pretrained(DIR, " \
                      "trust_remote_code=True), then "                                                  \
                      "transformers.integrations.tiktoken.convert_tiktoken_to_fast(tokenizer.model, DIR)"
#define ONLY "has no tokenizer.json, only "

char *rk_tokenizer_dir_kind(const char *path)
{
    static const struct pattern patterns[] = {
        {"", "tiktoken.model", ONLY "a tiktoken vocabulary", FROM_TIKTOKEN},
        {"", ".tiktoken", ONLY "a tiktoken vocabulary", FROM_TIKTOKEN},
        {"tokenizer", ".model", ONLY "a SentencePiece vocabulary", BY_SAVING},
        {"", "spiece.model", ONLY "a SentencePiece vocabulary", BY_SAVING},
        {"vocab", ".json", ONLY "a vocabulary of a slow tokenizer", BY_SAVING},
        {"vocab", ".txt", ONLY "a vocabulary of WordPiece", BY_SAVING},
    };
    const struct pattern *row;
    char *kind = first_kind(path, patterns, RK_ARRAY_LEN(patterns), &row);

    return kind ? kind
                : rk_strdup("has no tokenizer (tokenizer.json): copy that of the base model to it, or name "
                            "another directory with the key tokenizer_path");
}
