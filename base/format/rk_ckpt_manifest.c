/* Manifests: their text, and checks of the listed files. The text is untrusted: every
 * member is checked, an unknown one is refused, and names refer only to files below the part's directory. */
#include "base/format/rk_ckpt_dir.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/format/rk_ckpt_dir_internal.h"
#include "base/format/rk_ckpt_shard.h"
#include "base/rk_crc32c.h"
#include "base/rk_file.h"
#include "base/rk_file_io.h"
#include "base/rk_map.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"

#define FORMAT_NAME "rankd.checkpoint"
/* 65,536 files of at most 96 bytes of name each take less. */
#define MANIFEST_BYTES_MAX ((size_t)16 << 20)
#define FILES_MAX          65536
#define CONTENTS_MAX       16
#define WORD_BYTES_MAX     32
#define NAME_BYTES_MAX     200
#define CHECKSUM_KEY       "checksum"

void rk_ckpt_manifest_fini(struct rk_ckpt_manifest *manifest)
{
    rk_free(manifest->role);
    for (int64_t i = 0; i < manifest->contents.count; i++)
        rk_free(manifest->contents.items[i]);
    rk_array_fini(&manifest->contents);
    rk_json_free(manifest->layout);
    rk_json_free(manifest->state);
    for (int64_t i = 0; i < manifest->files.count; i++)
        rk_free(manifest->files.items[i].name);
    rk_array_fini(&manifest->files);
    *manifest = (struct rk_ckpt_manifest){0};
}

bool rk_ckpt_manifest_has(const struct rk_ckpt_manifest *manifest, const char *content)
{
    for (int64_t i = 0; i < manifest->contents.count; i++) {
        if (strcmp(manifest->contents.items[i], content) == 0)
            return true;
    }
    return false;
}

uint64_t rk_ckpt_manifest_bytes(const struct rk_ckpt_manifest *manifest)
{
    uint64_t bytes = 0;

    for (int64_t i = 0; i < manifest->files.count; i++)
        bytes += manifest->files.items[i].bytes;
    return bytes;
}

/* --- reading --- */

static struct rk_status *bad_member(const char *where, const char *expected)
{
    return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "%s: expected %s", where, expected);
}

/* [a-z_]+ */
static bool is_word(const char *text)
{
    size_t bytes = strlen(text);

    return bytes > 0 && bytes < WORD_BYTES_MAX && strspn(text, "abcdefghijklmnopqrstuvwxyz_") == bytes;
}

/* A relative path whose components are neither empty nor hidden, so ".." is refused too. */
static bool is_file_name(const char *text)
{
    size_t bytes = strlen(text);

    if (bytes == 0 || bytes > NAME_BYTES_MAX || text[bytes - 1] == '/')
        return false;
    for (size_t i = 0; i < bytes; i++) {
        bool begins = i == 0 || text[i - 1] == '/';

        if (begins && (text[i] == '.' || text[i] == '/'))
            return false;
        if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7f || strchr("\"\\", text[i]))
            return false;
    }
    return true;
}

/* Eight lower-case hex digits. */
static bool parse_crc(const struct rk_json *json, uint32_t *out)
{
    static const char digits[] = "0123456789abcdef";
    const char *text = rk_json_as_string(json, "");

    *out = 0;
    if (strlen(text) != 8 || strspn(text, digits) != 8)
        return false;
    for (int i = 0; i < 8; i++)
        *out = *out << 4 | (uint32_t)(strchr(digits, text[i]) - digits);
    return true;
}

static struct rk_json *new_crc(uint32_t crc)
{
    char *text = rk_format("%08x", crc);
    struct rk_json *json = rk_json_new_string(text);

    rk_free(text);
    return json;
}

static struct rk_status *read_format(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    (void)out;
    if (strcmp(rk_json_as_string(value, ""), FORMAT_NAME) == 0)
        return NULL;
    return bad_member("format", "\"" FORMAT_NAME "\"");
}

static struct rk_status *read_format_version(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    int64_t version = rk_json_as_int(value, 0);

    (void)out;
    if (version > RK_CKPT_FORMAT_VERSION)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "format_version %lld is newer than %d, the newest that this rankd reads",
                       (long long)version, RK_CKPT_FORMAT_VERSION);
    return version < 1 ? bad_member("format_version", "a positive integer") : NULL;
}

static struct rk_status *read_role(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    const char *role = rk_json_as_string(value, "");

    if (!is_word(role))
        return bad_member("role", "a name of a-z and _");
    out->role = rk_strdup(role);
    return NULL;
}

static struct rk_status *read_global_step(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    out->global_step = rk_json_as_int(value, -1);
    if (rk_json_type(value) == RK_JSON_INT && out->global_step >= 0 && out->global_step <= RK_CKPT_STEP_MAX)
        return NULL;
    return bad_member("global_step", "an integer of 0 to 2^53");
}

static struct rk_status *read_contents(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    if (rk_json_type(value) != RK_JSON_ARRAY || rk_json_count(value) > CONTENTS_MAX)
        return bad_member("contents", "an array of at most 16 names");
    for (int64_t i = 0; i < rk_json_count(value); i++) {
        const char *content = rk_json_as_string(rk_json_at(value, i), "");

        if (!is_word(content) || rk_ckpt_manifest_has(out, content))
            return bad_member("contents", "different names of a-z and _");
        rk_array_append(&out->contents, rk_strdup(content));
    }
    return NULL;
}

static struct rk_status *read_layout(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    out->layout = rk_json_retain(value);
    return rk_json_type(value) == RK_JSON_OBJECT ? NULL : bad_member("layout", "an object");
}

static struct rk_status *read_state(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    out->state = rk_json_retain(value);
    return rk_json_type(value) == RK_JSON_OBJECT ? NULL : bad_member("state", "an object");
}

static struct rk_status *read_file(struct rk_ckpt_manifest *out, const struct rk_json *value,
                                   struct rk_map *seen)
{
    const struct rk_json *bytes = rk_json_find(value, "bytes");
    const char *name = rk_json_as_string(rk_json_find(value, "name"), "");
    struct rk_ckpt_file file;

    if (rk_json_type(value) != RK_JSON_OBJECT || rk_json_count(value) != 3 || !is_file_name(name))
        return bad_member("files", "objects of name (a relative path), bytes and crc32c");
    if (rk_json_type(bytes) != RK_JSON_INT || rk_json_as_int(bytes, -1) < 0 ||
        !parse_crc(rk_json_find(value, "crc32c"), &file.crc32c))
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                              "files: %s: expected bytes (an integer) and crc32c (8 hex digits)", name);
    if (rk_map_put(seen, name, seen))
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "files: %s is listed twice", name);
    file.name = rk_strdup(name);
    file.bytes = (uint64_t)rk_json_as_int(bytes, 0);
    rk_array_append(&out->files, file);
    return NULL;
}

static struct rk_status *read_files(struct rk_ckpt_manifest *out, const struct rk_json *value)
{
    struct rk_map *seen;
    struct rk_status *st = NULL;

    if (rk_json_type(value) != RK_JSON_ARRAY || rk_json_count(value) > FILES_MAX)
        return bad_member("files", "an array of at most 65536 files");
    seen = rk_map_create();
    for (int64_t i = 0; !st && i < rk_json_count(value); i++)
        st = read_file(out, rk_json_at(value, i), seen);
    rk_map_destroy(seen);
    return st;
}

static const struct member {
    const char *key;
    bool is_required;
    struct rk_status *(*read)(struct rk_ckpt_manifest *out, const struct rk_json *value);
} members[] = {
    {"format", true, read_format},     {"format_version", true, read_format_version},
    {"role", true, read_role},         {"global_step", true, read_global_step},
    {"contents", true, read_contents}, {"layout", false, read_layout},
    {"state", false, read_state},      {"files", true, read_files},
};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(members); i++) {
        if (strcmp(key, members[i].key) == 0)
            return true;
    }
    return false;
}

/* CRC-32C of the compact text with sorted keys. */
static uint32_t checksum_of(const struct rk_json *json)
{
    char *text = rk_json_dump(json, 0, true);
    uint32_t crc = rk_crc32c(0, text, strlen(text));

    rk_free(text);
    return crc;
}

/* Removes the checksum from the object, and compares. */
static struct rk_status *check_checksum(struct rk_json *json)
{
    uint32_t expected, actual;

    if (!parse_crc(rk_json_find(json, CHECKSUM_KEY), &expected))
        return bad_member(CHECKSUM_KEY, "8 hex digits");
    rk_json_remove(json, CHECKSUM_KEY);
    actual = checksum_of(json);
    if (actual != expected)
        return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKSUM", CHECKSUM_KEY " is %08x, the other members have %08x",
                              expected, actual);
    return NULL;
}

static struct rk_status *read_members(struct rk_ckpt_manifest *out, struct rk_json *json)
{
    if (rk_json_type(json) != RK_JSON_OBJECT)
        return bad_member("manifest", "an object");
    RK_TRY(read_format(out, rk_json_find(json, "format")));
    RK_TRY(read_format_version(out, rk_json_find(json, "format_version")));
    RK_TRY(check_checksum(json));
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
        if (!is_known(rk_json_iter_key(it)))
            return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "unknown member '%.40s'",
                                  rk_json_iter_key(it));
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(members); i++) {
        const struct rk_json *value = rk_json_find(json, members[i].key);

        if (!value && members[i].is_required)
            return bad_member(members[i].key, "a value, got none");
        if (value)
            RK_TRY(members[i].read(out, value));
    }
    return NULL;
}

struct rk_status *rk_ckpt_manifest_parse(struct rk_ckpt_manifest *out, const char *text, size_t bytes,
                                         const char *source)
{
    struct rk_json *json;
    struct rk_status *st = rk_json_parse(&json, text, bytes, source, 0), *bad;

    *out = (struct rk_ckpt_manifest){0};
    if (st) { /* text that is not JSON is a damaged file, whatever code the parser returns */
        bad = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "%s", rk_status_message(st));
        rk_status_free(st);
        return bad;
    }
    st = read_members(out, json);
    rk_json_free(json);
    if (!st)
        return NULL;
    rk_ckpt_manifest_fini(out);
    return RK_WRAP(st, "manifest '%s'", source);
}

/* NOT_FOUND becomes NO_CHECKPOINT, or FOREIGN_CHECKPOINT. */
static struct rk_status *explain_missing(struct rk_status *st, const char *part_dir)
{
    struct stat info;

    if (rk_status_code(st) != RK_NOT_FOUND)
        return st;
    rk_status_free(st);
    RK_TRY(rk_ckpt_check_foreign(part_dir));
    if (stat(part_dir, &info) != 0)
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_CHECKPOINT", "checkpoint '%s': %s", part_dir,
                              strerror(errno));
    return RK_FAIL_REASON(RK_NOT_FOUND, "NO_CHECKPOINT",
                          "checkpoint '%s' has no " RK_CKPT_MANIFEST_FILE ": it is incomplete", part_dir);
}

struct rk_status *rk_ckpt_manifest_read(struct rk_ckpt_manifest *out, const char *part_dir)
{
    char *path = rk_path_join(part_dir, RK_CKPT_MANIFEST_FILE), *text;
    size_t bytes;
    struct rk_status *st = rk_file_read(&text, &bytes, path, MANIFEST_BYTES_MAX);

    *out = (struct rk_ckpt_manifest){0};
    if (!st) {
        st = rk_ckpt_manifest_parse(out, text, bytes, path);
        rk_free(text);
    } else {
        st = explain_missing(st, part_dir);
    }
    rk_free(path);
    return st;
}

/* --- files --- */

static struct rk_status *check_file(const char *part_dir, const struct rk_ckpt_file *file,
                                    rk_ckpt_check_level_t level)
{
    char *path = rk_path_join(part_dir, file->name);
    struct rk_status *st = NULL;
    uint64_t bytes = 0;
    uint32_t crc = 0;
    struct stat info;

    if (lstat(path, &info) != 0)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s': %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s' is not a file", path);
    else if ((uint64_t)info.st_size != file->bytes)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED", "'%s' has %lld bytes, expected %llu", path,
                            (long long)info.st_size, (unsigned long long)file->bytes);
    else if (level == RK_CKPT_CHECK_CHECKSUMS)
        st = rk_crc32c_of_file(&crc, &bytes, path);
    if (!st && level == RK_CKPT_CHECK_CHECKSUMS && crc != file->crc32c)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKSUM", "'%s' has checksum %08x, expected %08x", path, crc,
                            file->crc32c);
    rk_free(path);
    return st;
}

/* A part that was moved: of another role than its directory says, or of another step. */
static struct rk_status *check_place(const struct rk_ckpt_manifest *manifest, const char *part_dir)
{
    char *step_dir = rk_path_dir(part_dir);
    const char *slash = strrchr(part_dir, '/'), *name = slash ? slash + 1 : part_dir;
    struct rk_status *st = NULL;
    int64_t step;

    if (strcmp(manifest->role, name) != 0)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                            "'%s' holds a part of role '%s', expected role '%s'", part_dir, manifest->role,
                            name);
    else if (rk_ckpt_step_parse(step_dir, &step) && step != manifest->global_step)
        st = RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                            "'%s' holds a part of global_step %lld, expected %lld", part_dir,
                            (long long)manifest->global_step, (long long)step);
    rk_free(step_dir);
    return st;
}

static bool has_shards(const struct rk_ckpt_manifest *manifest)
{
    return rk_ckpt_manifest_has(manifest, "model") || rk_ckpt_manifest_has(manifest, "optimizer");
}

struct rk_status *rk_ckpt_check(struct rk_ckpt_manifest *out, const char *part_dir,
                                rk_ckpt_check_level_t level)
{
    struct rk_status *st = rk_ckpt_manifest_read(out, part_dir);

    if (!st)
        st = check_place(out, part_dir);
    for (int64_t i = 0; !st && i < out->files.count; i++)
        st = check_file(part_dir, &out->files.items[i], level);
    if (!st && level == RK_CKPT_CHECK_CHECKSUMS && has_shards(out))
        st = rk_ckpt_check_shards(part_dir, out);
    if (st)
        rk_ckpt_manifest_fini(out);
    return st;
}

struct rk_status *rk_ckpt_manifest_add_file(struct rk_ckpt_manifest *manifest, const char *part_dir,
                                            const char *name)
{
    char *path = rk_path_join(part_dir, name);
    struct rk_ckpt_file file = {0};
    struct rk_status *st = rk_crc32c_of_file(&file.crc32c, &file.bytes, path);

    rk_free(path);
    if (st)
        return st;
    RK_ASSERT(is_file_name(name));
    file.name = rk_strdup(name);
    rk_array_append(&manifest->files, file);
    return NULL;
}

/* --- writing --- */

static struct rk_json *format_files(const struct rk_ckpt_manifest *manifest)
{
    struct rk_json *files = rk_json_new_array();

    for (int64_t i = 0; i < manifest->files.count; i++) {
        const struct rk_ckpt_file *file = &manifest->files.items[i];
        struct rk_json *object = rk_json_new_object();

        rk_json_set(object, "name", rk_json_new_string(file->name));
        rk_json_set(object, "bytes", rk_json_new_int((int64_t)file->bytes));
        rk_json_set(object, "crc32c", new_crc(file->crc32c));
        rk_json_append(files, object);
    }
    return files;
}

char *rk_ckpt_manifest_format(const struct rk_ckpt_manifest *manifest)
{
    struct rk_json *json = rk_json_new_object(), *contents = rk_json_new_array();
    char *text, *line;

    RK_ASSERT(is_word(manifest->role));
    for (int64_t i = 0; i < manifest->contents.count; i++)
        rk_json_append(contents, rk_json_new_string(manifest->contents.items[i]));
    rk_json_set(json, "format", rk_json_new_string(FORMAT_NAME));
    rk_json_set(json, "format_version", rk_json_new_int(RK_CKPT_FORMAT_VERSION));
    rk_json_set(json, "role", rk_json_new_string(manifest->role));
    rk_json_set(json, "global_step", rk_json_new_int(manifest->global_step));
    rk_json_set(json, "contents", contents);
    if (manifest->layout)
        rk_json_set(json, "layout", rk_json_retain(manifest->layout));
    if (manifest->state)
        rk_json_set(json, "state", rk_json_retain(manifest->state));
    rk_json_set(json, "files", format_files(manifest));
    rk_json_set(json, CHECKSUM_KEY, new_crc(checksum_of(json)));
    text = rk_json_dump(json, 2, false);
    line = rk_format("%s\n", text);
    rk_free(text);
    rk_json_free(json);
    return line;
}

struct rk_status *rk_ckpt_manifest_write(const struct rk_ckpt_manifest *manifest, const char *part_dir)
{
    char *path = rk_path_join(part_dir, RK_CKPT_MANIFEST_FILE);
    char *text = rk_ckpt_manifest_format(manifest);
    struct rk_status *st = rk_write_file_atomic(path, text, strlen(text));

    rk_free(text);
    rk_free(path);
    return st;
}
