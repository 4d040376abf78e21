/* Reading pre-tokenizers: each component of the file becomes one or several steps. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static struct rk_status *add_step(struct rk_pretokenizer *pre, enum rk_pre_kind kind,
                                  struct rk_pre_step **out)
{
    if (pre->num_steps == RK_STEPS_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "pre_tokenizer: more than %d steps", RK_STEPS_MAX);
    *out = &pre->steps[pre->num_steps++];
    (*out)->kind = kind;
    return NULL;
}

static struct rk_status *add_class(struct rk_pretokenizer *pre, bool (*is_delimiter)(int32_t c),
                                   enum rk_split_behavior behavior)
{
    struct rk_pre_step *step;

    RK_TRY(add_step(pre, RK_PRE_CLASS, &step));
    step->is_delimiter = is_delimiter;
    step->behavior = behavior;
    return NULL;
}

static struct rk_status *read_behavior(enum rk_split_behavior *out, const struct rk_json *json,
                                       const char *where)
{
    static const char *const names[] = {
        [RK_SPLIT_REMOVED] = "Removed",
        [RK_SPLIT_ISOLATED] = "Isolated",
        [RK_SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [RK_SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [RK_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = names[*out];

    RK_TRY(rk_json_opt_string(json, where, "behavior", &name));
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum rk_split_behavior)i;
            return NULL;
        }
    }
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "%s.behavior: expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, "
        "got '%s'",
        where, name);
}

static struct rk_status *read_split(struct rk_pretokenizer *pre, const struct rk_json *json,
                                    const char *where)
{
    char *pattern_where = rk_format("%s.pattern", where);
    const char *behavior = NULL;
    struct rk_pre_step *step;
    struct rk_status *st = NULL;

    RK_TRY_GOTO(st, add_step(pre, RK_PRE_REGEX, &step), out);
    RK_TRY_GOTO(st, rk_regex_read(&step->regex, rk_json_find(json, "pattern"), pattern_where), out);
    RK_TRY_GOTO(st, rk_json_get_string(json, where, "behavior", &behavior), out);
    RK_TRY_GOTO(st, read_behavior(&step->behavior, json, where), out);
    st = rk_json_opt_bool(json, where, "invert", &step->invert);
out:
    rk_free(pattern_where);
    return st;
}

static struct rk_status *read_byte_level(struct rk_pretokenizer *pre, const struct rk_json *json,
                                         const char *where)
{
    bool add_prefix_space = true, use_regex = true;
    struct rk_pre_step *step;

    RK_TRY(rk_json_opt_bool(json, where, "add_prefix_space", &add_prefix_space));
    RK_TRY(rk_json_opt_bool(json, where, "use_regex", &use_regex));
    if (add_prefix_space)
        RK_TRY(add_step(pre, RK_PRE_PREFIX_SPACE, &step));
    if (use_regex) {
        RK_TRY(add_step(pre, RK_PRE_REGEX, &step));
        step->behavior = RK_SPLIT_ISOLATED;
        RK_TRY(rk_regex_compile(&step->regex, gpt2_pattern, strlen(gpt2_pattern)));
    }
    return add_step(pre, RK_PRE_SPELL_BYTES, &step);
}

static struct rk_status *read_metaspace(struct rk_pretokenizer *pre, const struct rk_json *json,
                                        const char *where)
{
    struct rk_pre_step *step;
    struct rk_metaspace metaspace = {0};
    struct rk_status *st;

    RK_TRY(rk_metaspace_read(&metaspace, json, where));
    RK_TRY_GOTO(st, add_step(pre, RK_PRE_MARK_SPACES, &step), out);
    step->prepend = metaspace.prepend;
    rk_str_append_bytes(&step->content, metaspace.marker.text, metaspace.marker.bytes);
    if (metaspace.split) {
        RK_TRY_GOTO(st, add_step(pre, RK_PRE_REGEX, &step), out);
        step->behavior = RK_SPLIT_MERGED_WITH_NEXT;
        step->regex.literal_bytes = metaspace.marker.bytes;
        step->regex.literal = rk_str_take(&metaspace.marker);
    }
out:
    rk_str_fini(&metaspace.marker);
    return st;
}

static struct rk_status *read_digits(struct rk_pretokenizer *pre, const struct rk_json *json,
                                     const char *where)
{
    bool individual_digits = false;

    RK_TRY(rk_json_get_bool(json, where, "individual_digits", &individual_digits));
    return add_class(pre, rk_char_is_numeric, individual_digits ? RK_SPLIT_ISOLATED : RK_SPLIT_CONTIGUOUS);
}

static struct rk_status *read_punctuation(struct rk_pretokenizer *pre, const struct rk_json *json,
                                          const char *where)
{
    enum rk_split_behavior behavior = RK_SPLIT_ISOLATED;

    RK_TRY(read_behavior(&behavior, json, where));
    return add_class(pre, rk_char_is_punctuation, behavior);
}

static struct rk_status *read_whitespace(struct rk_pretokenizer *pre, const struct rk_json *json,
                                         const char *where)
{
    struct rk_pre_step *step;

    (void)json;
    (void)where;
    return add_step(pre, RK_PRE_WORDS, &step);
}

static struct rk_status *read_whitespace_split(struct rk_pretokenizer *pre, const struct rk_json *json,
                                               const char *where)
{
    (void)json;
    (void)where;
    return add_class(pre, rk_char_is_space, RK_SPLIT_REMOVED);
}

static const struct {
    const char *type;
    struct rk_status *(*read)(struct rk_pretokenizer *pre, const struct rk_json *json, const char *where);
} pretokenizers[] = {
    {"ByteLevel", read_byte_level},
    {"Digits", read_digits},
    {"Metaspace", read_metaspace},
    {"Punctuation", read_punctuation},
    {"Split", read_split},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
};

static struct rk_status *read_component(void *user, const struct rk_json *json, const char *where)
{
    const char *type = rk_component_type(json);

    for (size_t i = 0; i < RK_ARRAY_LEN(pretokenizers); i++) {
        if (strcmp(type, pretokenizers[i].type) == 0)
            return pretokenizers[i].read(user, json, where);
    }
    return RK_FAIL(RK_UNIMPLEMENTED, "%s.type '%s' is not supported", where, type);
}

struct rk_status *rk_pretokenizer_read(struct rk_pretokenizer *pre, const struct rk_json *json,
                                       const char *where)
{
    return rk_component_each(json, where, "pretokenizers", read_component, pre);
}

bool rk_pretokenizer_drop_spelling(struct rk_pretokenizer *pre)
{
    if (pre->num_steps == 0 || pre->steps[pre->num_steps - 1].kind != RK_PRE_SPELL_BYTES)
        return false;
    pre->num_steps--;
    return true;
}
