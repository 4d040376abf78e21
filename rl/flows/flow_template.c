/* The chat template that a job gives: the name of a file, or the text itself. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/rk_flows.h"

#define TEMPLATE_BYTES_MAX (1u << 20) /* as much as the interpreter takes */

static bool has_jinja(const char *text)
{
    return strstr(text, "{{") || strstr(text, "{%") || strstr(text, "{#");
}

static struct rk_status *read_template(char **out, const char *path)
{
    size_t bytes = 0;

    if (rk_str_has_suffix(path, ".json"))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "'%s': expected a file with the text of a Jinja template (chat_template.jinja), not JSON", path);
    RK_TRY(rk_load_file(out, &bytes, path, TEMPLATE_BYTES_MAX));
    if (strlen(*out) != bytes)
        return RK_FAIL(RK_INVALID_ARGUMENT, "'%s': the template contains NUL", path);
    if (!has_jinja(*out))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "'%s': expected a Jinja template that writes the messages, got text without {{ ... }} and "
            "{%% ... %%}",
            path);
    return NULL;
}

struct rk_status *rk_flow_read_template(char **out, char **path, const char *value, const char *job_dir)
{
    char *full = rk_resolve_path(job_dir, value);
    struct stat info;
    struct rk_status *st = NULL;

    *out = *path = NULL;
    if (stat(full, &info) == 0 && S_ISREG(info.st_mode)) {
        *path = full;
        return read_template(out, full);
    }
    if (has_jinja(value))
        *out = rk_strdup(value);
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "'%.200s': expected a file with a Jinja template, or the text of one, with {{ ... }} or "
                     "{%% ... %%} that write the messages; '%.200s' is %s",
                     value, full, access(full, F_OK) == 0 ? "no regular file" : "no file");
    rk_free(full);
    return st;
}
