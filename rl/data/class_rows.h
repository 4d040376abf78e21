/* Rows of a dataset class of the user's (data.custom_cls, verl's key). */
#ifndef RK_RL_CLASS_ROWS_H
#define RK_RL_CLASS_ROWS_H

#include "base/rk_json.h"
#include "base/rk_status.h"

struct rk_class_rows {
    const char *python;           /* the interpreter */
    const char *path, *name;      /* of the class: a file or pkg://MODULE, and its name there */
    const char *const *files;     /* NULL-terminated */
    const struct rk_json *config; /* the job's section data */
    const char *tokenizer_dir;    /* or NULL */
};

/* Runs the class once (share/rankd/python/rankd_dataset.py) and writes its rows as JSON Lines to a new file
 * in the temporary directory; *out is its path (remove it, rk_free). FAILED_PRECONDITION when Python or the
 * class fails, which says why on standard error. */
struct rk_status *rk_class_rows_write(char **out, const struct rk_class_rows *rows) RK_NODISCARD;

#endif
