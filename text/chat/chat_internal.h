/* The chat templates of a model. */
#ifndef RK_CHAT_INTERNAL_H
#define RK_CHAT_INTERNAL_H

#include "text/chat/render_internal.h"
#include "text/rk_chat.h"

struct rk_chat {
    struct rk_jinja *plain;      /* the default */
    struct rk_jinja *with_tools; /* used when tools are given; NULL: the default */
    struct rk_json *variables;   /* special tokens */
};

struct rk_status *rk_jinja_compile(struct rk_jinja **out, const char *text, size_t bytes,
                                   const char *source) RK_NODISCARD;

#endif
