/* One load of a configuration, passed from step to step:
 *
 *   rk_config_files.c     the view and the files of its tree of named parts -> one object
 *   rk_config_sources.c   environment and flags over it, defaults under it, and those of another product
 *   rk_config_value.c     values of flags, and "${...}"
 *   rk_config_foreign.c   keys of another product
 *   rk_config_check.c     the result against the key table
 *
 * Every step continues after a problem, so that one load reports all problems. */
#ifndef RK_CONFIG_INTERNAL_H
#define RK_CONFIG_INTERNAL_H

#include "base/rk_arena.h"
#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_map.h"

/* A parsed file. The text stays for line numbers. */
struct rk_config_doc {
    char *name;
    char *text;
    size_t bytes;
    struct rk_json *json; /* without its comments */
};

/* The place of a value: in a document at a path of that document, or (doc NULL) `text`. */
struct rk_config_place {
    const struct rk_config_doc *doc;
    const char *path;
    const char *text; /* "env RANKD_DEVICE", "flag", "default" */
};

struct rk_config_loader {
    const struct rk_config_source *source;
    struct rk_arena *arena;  /* places and their text */
    struct rk_json *tree;    /* what has been resolved so far */
    struct rk_map *places;   /* path of a leaf -> struct rk_config_place * */
    struct rk_map *aliases;  /* key that a foreign row has set -> path of the foreign key */
    struct rk_map *names;    /* of sections that rows number -> number of each, from 1 */
    struct rk_map *rows;     /* path -> const struct rk_config_key * */
    struct rk_map *sections; /* proper prefixes of the table's paths -> themselves */
    RK_ARRAY(struct rk_config_doc *) docs;
    struct rk_str problems; /* one line each */
    int64_t num_problems;
    bool is_partial; /* parts of the tree could not be read: do not report their missing keys */
};

#define RK_CONFIG_FILE_BYTES_MAX (1u << 20)
/* Takes ownership of `text`. NULL, with a problem reported, if it is not a JSON object. */
const struct rk_config_doc *rk_config_add_doc(struct rk_config_loader *loader, const char *name, char *text,
                                              size_t bytes);
/* rk_config_add_doc for a file. */
const struct rk_config_doc *rk_config_load_doc(struct rk_config_loader *loader, const char *file);

/* Reads source->file or source->text and everything it selects into loader->tree. An error only when the file
 * itself cannot be read. */
struct rk_status *rk_config_resolve(struct rk_config_loader *loader) RK_NODISCARD;
void rk_config_apply_environment(struct rk_config_loader *loader);
void rk_config_apply_overrides(struct rk_config_loader *loader);
void rk_config_apply_presets(struct rk_config_loader *loader);
void rk_config_apply_foreign(struct rk_config_loader *loader);
/* The section that a row renames `section` to, without ".*"; NULL: none. rk_free it. */
char *rk_config_find_renamed(const struct rk_config_source *source, const char *section);
/* Applies rows to values at a place where `path` needs a section. */
void rk_config_expand_parents(struct rk_config_loader *loader, const char *path);
/* Applies a row to a value for a section that has members, which are kept. False, without taking the value,
 * when there is no such section or row. */
bool rk_config_put_in_section(struct rk_config_loader *loader, const char *path, struct rk_json *value,
                              const struct rk_config_place *place);
void rk_config_apply_defaults(struct rk_config_loader *loader);
void rk_config_resolve_refs(struct rk_config_loader *loader);
void rk_config_check(struct rk_config_loader *loader);

/* "expected 1 to 8, got 9": the reason why the row does not allow the value (NULL counts as null), or NULL.
 * rk_free it.
 */
char *rk_config_find_problem(const struct rk_config_key *row, const struct rk_json *value);

/* "file:line: path: text" with the place in front; `place` may be NULL. */
void rk_config_problem(struct rk_config_loader *loader, const struct rk_config_place *place, const char *path,
                       const char *fmt, ...) RK_PRINTF(4, 5);
/* The place of the leaf at `path`, or of the closest leaf above it (a section that a reference filled); NULL
 * when there is none. */
const struct rk_config_place *rk_config_find_place(const struct rk_config_loader *loader, const char *path);
/* Sets the place of the section `path`, from the first of its leaves. */
void rk_config_place_section(struct rk_config_loader *loader, const char *path);
void rk_config_set_place(struct rk_config_loader *loader, const char *path,
                         const struct rk_config_place *place);
char *rk_config_place_text(const struct rk_config_place *place); /* "job.json:14"; rk_free it */
/* Deep-merges `src`, which was written at `place`, over `dst`, the object at `path` of the tree. */
void rk_config_merge(struct rk_config_loader *loader, struct rk_json *dst, const char *path,
                     const struct rk_json *src, const struct rk_config_place *place);
/* Value of text from a flag, the environment or a reference's default: JSON, else a bare word. For a key that
 * holds text, digits and true stay text. */
struct rk_json *rk_config_parse_value(const struct rk_config_loader *loader, const char *path,
                                      const char *text);
/* rk_config_parse_value for an override, in Hydra's grammar as well. NULL and a static text if the syntax is
 * wrong. */
struct rk_json *rk_config_parse_override(const struct rk_config_loader *loader, const char *path,
                                         const char *text, const char **problem);
/* The key's value is text, also if it looks like another type. */
bool rk_config_holds_text(const struct rk_config_loader *loader, const char *path);
/* The first row for the path, or NULL. */
const struct rk_config_foreign *rk_config_find_foreign(const struct rk_config_source *source,
                                                       const char *path);
/* Whether a row has a path below that path. */
bool rk_config_is_foreign_section(const struct rk_config_source *source, const char *path);
bool rk_config_is_ref(const struct rk_json *json); /* a string that is "${...}" as a whole */

#endif
