/* Messages of a data row: their form, and their text with the chat template of the model. */
#ifndef RK_RL_MESSAGES_H
#define RK_RL_MESSAGES_H

#include "base/rk_json.h"
#include "base/rk_str.h"
#include "text/rk_chat.h"

/* The names of the members of an object, "a, b, c", for messages; rk_free it. */
char *rk_messages_members(const struct rk_json *object);
/* INVALID_ARGUMENT with the text and what the member `key` of `owner` is: ", got an integer", or for one that
 * is missing ", got nothing; there are: " and the members of the owner. */
struct rk_status *rk_messages_wrong(const struct rk_json *owner, const char *key, const char *fmt, ...)
    RK_PRINTF(3, 4) RK_NODISCARD;

/* The chat template and its settings for the messages of all rows. */
struct rk_messages_template {
    const struct rk_chat *chat;        /* NULL: the model has no template */
    const struct rk_json *chat_kwargs; /* object of variables for it, or NULL */
    const char *dir;                   /* where a template was looked for, for messages; or NULL */
    int64_t now_s;                     /* time for templates that render the date */
};

/* A list with at least one {"role": TEXT, "content": TEXT or parts of text}; names the item that is not. */
struct rk_status *rk_messages_check(const struct rk_json *messages) RK_NODISCARD;
/* The row's member tools, if any: JSON schemas for the template, as a list or, as TRL's trainers take it, as
 * the JSON text of one. rk_json_free it; NULL when there are none. */
struct rk_status *rk_messages_tools(const struct rk_json *row, struct rk_json **out) RK_NODISCARD;
/* UNIMPLEMENTED for a row with images, videos or audios. */
struct rk_status *rk_messages_refuse_media(const struct rk_json *row) RK_NODISCARD;
/* Appends the text of args->messages to `out`; now_s, and kwargs if `args` has none, are taken from `from`.
 */
struct rk_status *rk_messages_render(struct rk_str *out, const struct rk_messages_template *from,
                                     const struct rk_chat_args *args) RK_NODISCARD;
const char *rk_messages_type_of(const struct rk_json *json); /* "an integer"; "nothing" for NULL */

#endif
