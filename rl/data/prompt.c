/* Prompts: text that is encoded unchanged, or messages that the model's chat template renders. Special tokens
 * in the text are recognised, and none are added, since the template contains them. */
#include "rl/data/prompt_internal.h"

#include "base/rk_alloc.h"
#include "rl/data/messages.h"

void rk_prompt_fini(struct rk_prompt *prompt)
{
    rk_free(prompt->text);
    rk_free(prompt->ids.items);
    *prompt = (struct rk_prompt){0};
}

static struct rk_status *render(struct rk_prompt *out, const struct rk_json *row,
                                const struct rk_json *messages, const struct rk_dataset_config *config)
{
    struct rk_messages_template from = {config->chat, config->chat_kwargs, config->template_dir,
                                        config->now_s};
    struct rk_chat_args args = {.messages = messages, .add_generation_prompt = true};
    struct rk_str text = {0};
    struct rk_json *tools = NULL;
    struct rk_status *st = rk_messages_check(messages);

    if (!st)
        st = rk_messages_tools(row, &tools);
    args.tools = tools;
    if (!st)
        st = rk_messages_render(&text, &from, &args);
    if (!st) {
        out->bytes = text.bytes;
        out->text = rk_str_take(&text);
    }
    rk_json_free(tools);
    rk_str_fini(&text);
    return st;
}

static struct rk_status *read_text(struct rk_prompt *out, const struct rk_json *row,
                                   const struct rk_dataset_config *config)
{
    const struct rk_json *prompt = rk_json_find(row, config->prompt_key);
    struct rk_str text = {0};

    out->is_chat = rk_json_type(prompt) == RK_JSON_ARRAY;
    if (out->is_chat)
        return render(out, row, prompt, config);
    if (rk_json_type(prompt) != RK_JSON_STRING)
        return rk_messages_wrong(row, config->prompt_key, "expected text or a list of messages");
    rk_str_append_bytes(&text, rk_json_as_string(prompt, ""), rk_json_string_bytes(prompt));
    out->bytes = text.bytes;
    out->text = rk_str_take(&text);
    return NULL;
}

struct rk_status *rk_prompt_read(struct rk_prompt *out, const struct rk_json *row,
                                 const struct rk_dataset_config *config, const struct rk_tokenizer *tokenizer)
{
    struct rk_status *st;

    *out = (struct rk_prompt){0};
    st = read_text(out, row, config);
    if (!st)
        st = rk_tokenizer_encode(tokenizer, out->text, out->bytes, false, &out->ids);
    if (!st && out->ids.count == 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "the prompt is empty");
    if (!st) { /* rows stay in memory: without the room to grow */
        out->text = rk_realloc(out->text, out->bytes + 1);
        out->ids.items = rk_realloc(out->ids.items, (size_t)out->ids.count * sizeof(*out->ids.items));
    }
    return st ? RK_WRAP(st, "%s", config->prompt_key) : NULL;
}
