/* Pre-tokenisation: regular expressions of tokenizer.json cut the text into words. PCRE2 runs whatever
 * pattern the file holds, in UTF and Unicode-property mode, with match and depth limits. */
#include "driver-cli/tokenizer/tokenizer_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/rk_assert.h"

#define MATCH_LIMIT 10000000 /* steps of one match: far above what the known patterns need on a megabyte */
#define DEPTH_LIMIT 100000

typedef struct rk_status *(*on_word_fn_t)(void *user, const char *word, size_t bytes);

struct run {
    const struct rk_pretokenizer *pre;
    pcre2_match_context *context;
    on_word_fn_t on_word;
    void *user;
};

struct rk_status *rk_pretokenizer_add_split(struct rk_pretokenizer *pre, const char *pattern,
                                            bool keep_matches, bool keep_gaps)
{
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    pcre2_code *code;

    if (pre->num_splits == RK_PRETOKENIZER_MAX_SPLITS)
        return RK_FAIL(RK_UNIMPLEMENTED, "pre_tokenizer: more than %d splits", RK_PRETOKENIZER_MAX_SPLITS);
    code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                         &error_offset, NULL);
    if (!code) {
        PCRE2_UCHAR text[128] = {0};

        pcre2_get_error_message(error, text, sizeof(text));
        return RK_FAIL(RK_UNIMPLEMENTED, "unsupported pre-tokenizer regex '%s': %s at offset %zu", pattern,
                       (const char *)text, (size_t)error_offset);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is no JIT the interpreter runs */
    pre->splits[pre->num_splits].code = code;
    pre->splits[pre->num_splits].keep_matches = keep_matches;
    pre->splits[pre->num_splits].keep_gaps = keep_gaps;
    pre->num_splits++;
    return NULL;
}

void rk_pretokenizer_fini(struct rk_pretokenizer *pre)
{
    for (int32_t i = 0; i < pre->num_splits; i++)
        pcre2_code_free(pre->splits[i].code);
    pre->num_splits = 0;
}

static struct rk_status *split_from(const struct run *run, int32_t level, const char *text, size_t bytes);

static struct rk_status *emit(const struct run *run, int32_t level, bool is_kept, const char *text,
                              size_t bytes)
{
    return is_kept && bytes > 0 ? split_from(run, level + 1, text, bytes) : NULL;
}

static struct rk_status *match_all(const struct run *run, int32_t level, const char *text, size_t bytes,
                                   pcre2_match_data *match)
{
    size_t done = 0, at = 0;

    while (at < bytes) {
        int rc = pcre2_match(run->pre->splits[level].code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                             match, run->context);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);

        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "pre-tokenizer: matching failed (PCRE2 error %d)", rc);
        if (range[1] == range[0]) { /* an empty match takes nothing: step over one character */
            for (at = range[1] + 1; at < bytes && ((uint8_t)text[at] & 0xc0) == 0x80; at++)
                continue;
            continue;
        }
        RK_TRY(emit(run, level, run->pre->splits[level].keep_gaps, text + done, range[0] - done));
        RK_TRY(emit(run, level, run->pre->splits[level].keep_matches, text + range[0], range[1] - range[0]));
        done = at = range[1];
    }
    return emit(run, level, run->pre->splits[level].keep_gaps, text + done, bytes - done);
}

/* Applies split number `level` and those after it. */
static struct rk_status *split_from(const struct run *run, int32_t level, const char *text, size_t bytes)
{
    pcre2_match_data *match;
    struct rk_status *st;

    if (level == run->pre->num_splits)
        return run->on_word(run->user, text, bytes);
    match = pcre2_match_data_create_from_pattern(run->pre->splits[level].code, NULL);
    RK_ASSERT(match);
    st = match_all(run, level, text, bytes, match);
    pcre2_match_data_free(match);
    return st;
}

struct rk_status *rk_pretokenizer_run(const struct rk_pretokenizer *pre, const char *text, size_t bytes,
                                      on_word_fn_t on_word, void *user)
{
    struct run run = {
        .pre = pre, .context = pcre2_match_context_create(NULL), .on_word = on_word, .user = user};
    struct rk_str spaced = {0};
    struct rk_status *st;

    RK_ASSERT(run.context);
    pcre2_set_match_limit(run.context, MATCH_LIMIT);
    pcre2_set_depth_limit(run.context, DEPTH_LIMIT);
    if (pre->add_prefix_space && bytes > 0 && text[0] != ' ') {
        rk_str_append(&spaced, " ");
        rk_str_append_bytes(&spaced, text, bytes);
        text = spaced.text;
        bytes = spaced.bytes;
    }
    st = bytes > 0 ? split_from(&run, 0, text, bytes) : NULL;
    rk_str_fini(&spaced);
    pcre2_match_context_free(run.context);
    return st;
}
