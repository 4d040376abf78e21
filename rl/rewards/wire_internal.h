/* Messages of reward programs and reward servers: the objects of protocol 2 (docs/rewards.md). */
#ifndef RK_REWARD_WIRE_INTERNAL_H
#define RK_REWARD_WIRE_INTERNAL_H

#include "base/rk_str.h"
#include "rl/rk_reward.h"

#define RK_REWARD_PROTOCOL     2
#define RK_REWARD_ANSWER_BYTES (1 << 20) /* of one answer; more indicates a faulty program */
#define RK_REWARD_EXTRAS_MAX   32        /* members in addition to the score */
#define RK_REWARD_NAME_BYTES   64        /* of the name of such a member */

/* An item as an object {"id": id, "data_source": ..., ...}. */
struct rk_json *rk_reward_wire_item(const struct rk_reward_item *item, int64_t id);
/* Appends one line {"items": [...]}; item i gets the id first_id + indices[i] and is items[indices[i]]. */
void rk_reward_wire_append_items(struct rk_str *out, const struct rk_reward_item *items,
                                 const int64_t *indices, int64_t count, int64_t first_id);

/* One answer {"id": ..., "score" | "error" | "skip": ..., extras}. An otherwise invalid answer with
 * a valid id is that item's error; INVALID_ARGUMENT when it names none. The caller releases the result. */
struct rk_status *rk_reward_wire_read_answer(int64_t *id, struct rk_reward_result *result,
                                             const struct rk_json *answer) RK_NODISCARD;
/* The JSON of an answer. */
struct rk_status *rk_reward_wire_parse(struct rk_json **out, const char *text, size_t bytes) RK_NODISCARD;
/* One answer as a line of text. */
struct rk_status *rk_reward_wire_parse_answer(int64_t *id, struct rk_reward_result *result, const char *line,
                                              size_t bytes) RK_NODISCARD;
/* The first line of a program: {"hello": 2}, or with "error", why it cannot start, which gives
 * FAILED_PRECONDITION. INVALID_ARGUMENT for another version or no hello. */
struct rk_status *rk_reward_wire_check_hello(const char *line, size_t bytes) RK_NODISCARD;

#endif
