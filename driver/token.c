#include "driver/token_internal.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_log.h"
#include "base/net/rk_net.h"
#include "base/net/rk_secret.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"

#define ADDRESS_BYTES_MAX 256

struct rk_status *rk_token_read(char **out, const char *path)
{
    static const char *const rights[] = {"admin:", "driver:", "viewer:"};
    const char *token;
    char *text;

    *out = NULL;
    RK_TRY(rk_read_token(&text, path, 0640)); /* as rankd makes one for its group */
    token = text;
    for (size_t i = 0; i < RK_ARRAY_LEN(rights); i++) {
        if (rk_str_has_prefix(text, rights[i]))
            token = text + strlen(rights[i]);
    }
    if (*token)
        *out = rk_format("Bearer %s", token);
    rk_free(text);
    return *out ? NULL : RK_FAIL(RK_INVALID_ARGUMENT, "token file '%s' is empty", path);
}

static char *token_in(const char *dir)
{
    char *path = rk_path_join(dir, RK_TOKEN_NAME), *token = NULL;
    struct rk_status *st = access(path, R_OK) == 0 ? rk_token_read(&token, path) : NULL;

    if (st)
        RK_WARN("'%s': %s", path, rk_status_message(st));
    rk_status_free(st);
    rk_free(path);
    return token;
}

static bool has_address(const char *dir, const char *address)
{
    char *path = rk_path_join(dir, RK_TOKEN_ADDRESS_NAME), *text = NULL;
    struct rk_status *st = rk_load_file(&text, NULL, path, ADDRESS_BYTES_MAX);
    bool is_same;

    if (text)
        text[strcspn(text, "\n")] = '\0';
    is_same = text && strcmp(text, address) == 0;
    rk_status_free(st);
    rk_free(text);
    rk_free(path);
    return is_same;
}

char *rk_token_find(const char *address, const char *root)
{
    static const char prefix[] = "unix:";
    char *dir, *known, *token = NULL;
    struct dirent *entry;
    DIR *opened;

    if (rk_str_has_prefix(address, prefix)) {
        dir = rk_path_dir(address + strlen(prefix));
        token = token_in(dir);
        rk_free(dir);
    }
    known = rk_net_address(address); /* localhost as daemons write it */
    opened = token ? NULL : opendir(root);
    while (opened && !token && (entry = readdir(opened)) != NULL) {
        dir = rk_path_join(root, entry->d_name);
        token = entry->d_name[0] != '.' && has_address(dir, known) ? token_in(dir) : NULL;
        rk_free(dir);
    }
    if (opened)
        closedir(opened);
    rk_free(known);
    return token;
}
