/* Chat templates: the Jinja templates of Hugging Face models, rendered as transformers' apply_chat_template
 * does.
 *
 * The interpreter supports the constructs that published templates use (docs/data.md lists them). Others are
 * UNIMPLEMENTED, with the template's line and the name: statements and operators when the template is
 * compiled, filters, tests and methods when they are evaluated. Untrusted input: size, nesting, work and
 * output are bounded. Immutable after creation. */
#ifndef RK_CHAT_H
#define RK_CHAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

struct rk_chat;

/* `source` names the text in messages: "SOURCE:LINE: ...". */
struct rk_status *rk_chat_create_text(struct rk_chat **out, const char *text, size_t bytes,
                                      const char *source) RK_NODISCARD;
/* The template of a model's or a tokenizer's directory, with its special tokens: chat_template.jinja and
 * additional_chat_templates/tool_use.jinja, else chat_template in tokenizer_config.json (text, or a list of
 * {name, template}), else chat_template.json. `custom`, when it is not NULL, is the template's text instead
 * of all these. *out is NULL when there is none. */
struct rk_status *rk_chat_create_dir(struct rk_chat **out, const char *dir, const char *custom) RK_NODISCARD;
void rk_chat_destroy(struct rk_chat *chat); /* NULL is a no-op */
/* Variables that every rendering has: members of an object, {"bos_token": "<s>"}. Copies. */
void rk_chat_set_variables(struct rk_chat *chat, const struct rk_json *variables);

/* Whether both have the same templates, and the same tokens at the ends of a text; NULL: no template. */
bool rk_chat_is_same(const struct rk_chat *a, const struct rk_chat *b);

/* The output of generation blocks ({% generation %}): bytes begin..end of the output, in order. */
struct rk_chat_span {
    size_t begin, end;
};

struct rk_chat_spans {
    struct rk_chat_span *items; /* rk_free */
    int64_t count, capacity;
    bool is_partial; /* there were more, inside of a macro or of a block whose text is used elsewhere */
};

struct rk_chat_args {
    const struct rk_json *messages; /* array of objects; must not be empty */
    const struct rk_json *tools;    /* array of JSON schemas, or NULL */
    const struct rk_json *kwargs;   /* additional variables, which override the special tokens; or NULL */
    bool add_generation_prompt;
    int64_t now_s;                     /* of strftime_now, seconds since 1970 */
    struct rk_chat_spans *generations; /* receives them; or NULL */
};

/* Appends the prompt's text to `out`, on failure a part of it. INVALID_ARGUMENT where the template raises an
 * exception or Python would; RESOURCE_EXHAUSTED beyond the bounds. Messages name the template's line. */
struct rk_status *rk_chat_render(const struct rk_chat *chat, const struct rk_chat_args *args,
                                 struct rk_str *out) RK_NODISCARD;

RK_END_DECLS

#endif
