/* Between rk_ckpt_manifest.c, rk_ckpt_dir.c, rk_ckpt_entries.c and rk_ckpt_publish.c. */
#ifndef RK_CKPT_DIR_INTERNAL_H
#define RK_CKPT_DIR_INTERNAL_H

#include "base/rk_array.h"
#include "base/format/rk_ckpt_dir.h"

struct rk_ckpt_names {
    RK_ARRAY(char *) items;
};
/* All entries; none for a directory that does not exist. To be ended, after a failure too. */
struct rk_status *rk_ckpt_list_names(struct rk_ckpt_names *out, const char *dir) RK_NODISCARD;
void rk_ckpt_names_fini(struct rk_ckpt_names *names);
/* Whether an entry of `dir`, or of the directory `below` in it, begins and ends so. */
bool rk_ckpt_has_entry(const char *dir, const char *prefix, const char *suffix);
bool rk_ckpt_has_entry_below(const char *dir, const char *below, const char *prefix, const char *suffix);
/* Removes temporary directories of the step: of one part, or of all when `name` is NULL. */
struct rk_status *rk_ckpt_sweep_step(const char *step_dir, const char *name) RK_NODISCARD;

/* UNIMPLEMENTED (reason FOREIGN_CHECKPOINT) when the directory looks like a checkpoint that verl wrote. */
struct rk_status *rk_ckpt_check_foreign(const char *part_dir) RK_NODISCARD;

#endif
