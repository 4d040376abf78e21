/* Shared by rk_config_resolve.c, which walks directories, and rk_config_files.c, which reads files. */
#ifndef RK_CONFIG_FILES_INTERNAL_H
#define RK_CONFIG_FILES_INTERNAL_H

#include <limits.h>

#include "base/config/rk_config_internal.h"

#define RK_CONFIG_FILE_BYTES_MAX (1u << 20)

struct rk_config_resolver {
    struct rk_config_loader *loader;
    char nest_root[PATH_MAX]; /* canonical; all files must be below it */
    int depth;                /* of directories, limited because links may form a cycle */
};

/* The user's text for one node, and its position. json is NULL if there is none. */
struct rk_config_view {
    const struct rk_json *json;
    struct rk_config_place place;
};

/* A file that is being read, and the one that inherits from it. */
struct rk_config_chain {
    const char *file;
    const struct rk_config_chain *heir;
};

/* Whether the key is reserved ("__..."): a directive that is not part of the result. */
bool rk_config_is_reserved(const char *key);
/* Takes ownership of `text`. NULL, with a problem reported, if it is not a JSON object. */
const struct rk_config_doc *rk_config_add_doc(struct rk_config_loader *loader, const char *name, char *text,
                                              size_t bytes);
/* rk_config_add_doc for a file. */
const struct rk_config_doc *rk_config_load_doc(struct rk_config_loader *loader, const char *file);
/* The part of `view` under `key`; the key's text must live in the arena or in a document. */
struct rk_config_view rk_config_view_member(const struct rk_config_loader *loader,
                                            const struct rk_config_view *view, const char *key);
void rk_config_view_problem(struct rk_config_loader *loader, const struct rk_config_view *view,
                            const char *key, const char *path, const char *message);
/* Applies the view to the contents of a file; __override__ and plain members have the same effect. */
void rk_config_apply_view(struct rk_config_loader *loader, struct rk_json *value, const char *path,
                          const struct rk_config_view *view);
/* Merges the chain's file over `value`, after the files that it inherits from. */
void rk_config_merge_file(struct rk_config_resolver *resolver, struct rk_json *value, const char *path,
                          const struct rk_config_chain *chain);

#endif
