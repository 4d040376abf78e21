/* Layouts of the digits job with four layers, and the keys of each layout. */
#ifndef RK_TEST_LAYOUTS_H
#define RK_TEST_LAYOUTS_H

#include <stdbool.h>
#include <stdint.h>

#define LAYOUT_MAX_KEYS 8
#define LAYOUT_ACTOR    "actor_rollout_ref.actor."
#define LAYOUT_ROLLOUT  "actor_rollout_ref.rollout."
/* Pipelines of four stages, or of two stages with two chunks, need four layers; path relative to the job. */
#define LAYOUT_MODEL "actor_rollout_ref.model.hf_config_path=config-4-layers.json"

struct layout {
    const char *label;
    int32_t num_daemons;
    int32_t tp, rollout_tp;
    const char *keys[LAYOUT_MAX_KEYS]; /* NULL-terminated */
};

/* The first is one rank. */
const struct layout *layouts(int64_t *count);
/* The layout with that label; fails the test if there is none. */
const struct layout *layout_find(const char *label);
/* Its number of daemons, for --local; borrowed until the next call. */
const char *layout_local(const struct layout *layout);
/* Whether this machine has enough devices; prints a message if not. */
bool layout_fits(const struct layout *layout);
/* Scores, loss, norm of the gradients, and the difference between rollout and trainer of a step equal those
 * of the run in `expected_dir`, up to the order of sums. */
void layout_assert_step(const char *dir, const char *expected_dir, int64_t step);

#endif
