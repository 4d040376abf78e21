/* Decoders of tokenizer.json: steps from texts of tokens to texts of tokens, joined at the end. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

void rk_token_texts_append(struct rk_token_texts *texts, const char *text, size_t bytes)
{
    rk_str_append_bytes(&texts->text, text, bytes);
    rk_array_append(&texts->ends, texts->text.bytes);
}

static void texts_clear(struct rk_token_texts *texts)
{
    rk_str_clear(&texts->text);
    texts->ends.count = 0;
}

static void texts_fini(struct rk_token_texts *texts)
{
    rk_str_fini(&texts->text);
    rk_array_fini(&texts->ends);
}

static const char *text_at(const struct rk_token_texts *texts, int64_t i, size_t *bytes)
{
    size_t begin = i > 0 ? texts->ends.items[i - 1] : 0;

    *bytes = texts->ends.items[i] - begin;
    return rk_str_text(&texts->text) + begin;
}

/* --- ByteLevel: a token with a character outside the byte alphabet is kept as text --- */

static void append_bytes_of(const char *text, size_t bytes, struct rk_str *raw)
{
    size_t before = raw->bytes;
    int used;

    for (size_t at = 0; at < bytes; at += (size_t)used) {
        int byte = rk_byte_alphabet_byte(rk_utf8_read(text + at, &used));
        char character = (char)byte;

        if (byte < 0) {
            raw->bytes = before;
            rk_str_append_bytes(raw, text, bytes);
            return;
        }
        rk_str_append_bytes(raw, &character, 1);
    }
}

static void apply_byte_level(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                             const struct rk_token_texts *in, struct rk_token_texts *out)
{
    struct rk_str raw = {0};

    (void)step;
    (void)matcher;
    for (int64_t i = 0; i < in->ends.count; i++) {
        size_t bytes;
        const char *text = text_at(in, i, &bytes);

        append_bytes_of(text, bytes, &raw);
    }
    rk_str_append_utf8(&out->text, rk_str_text(&raw), raw.bytes);
    rk_array_append(&out->ends, out->text.bytes);
    rk_str_fini(&raw);
}

/* --- ByteFallback: a run of "<0xHH>" is text when all of it is UTF-8, else U+FFFD for each of its bytes ---
 */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int byte_of(const char *text, size_t bytes)
{
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || hex_digit(text[3]) < 0 ||
        hex_digit(text[4]) < 0)
        return -1;
    return hex_digit(text[3]) << 4 | hex_digit(text[4]);
}

static void end_run(struct rk_str *run, struct rk_token_texts *out)
{
    if (run->bytes > 0 && rk_text_is_utf8(run->text, run->bytes)) {
        rk_token_texts_append(out, run->text, run->bytes);
    } else {
        for (size_t i = 0; i < run->bytes; i++)
            rk_token_texts_append(out, REPLACEMENT, strlen(REPLACEMENT));
    }
    rk_str_clear(run);
}

static void apply_byte_fallback(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                                const struct rk_token_texts *in, struct rk_token_texts *out)
{
    struct rk_str run = {0};

    (void)step;
    (void)matcher;
    for (int64_t i = 0; i < in->ends.count; i++) {
        size_t bytes;
        const char *text = text_at(in, i, &bytes);
        int byte = byte_of(text, bytes);
        char character = (char)byte;

        if (byte >= 0) {
            rk_str_append_bytes(&run, &character, 1);
            continue;
        }
        end_run(&run, out);
        rk_token_texts_append(out, text, bytes);
    }
    end_run(&run, out);
    rk_str_fini(&run);
}

/* --- the others --- */

static void apply_fuse(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                       const struct rk_token_texts *in, struct rk_token_texts *out)
{
    (void)step;
    (void)matcher;
    rk_token_texts_append(out, rk_str_text(&in->text), in->text.bytes);
}

/* A token in which matching fails is unchanged. */
static void replace_in(struct rk_matches *matches, const struct rk_str *content, struct rk_token_texts *out)
{
    size_t before = out->text.bytes;
    struct rk_status *st = rk_matches_replace(matches, content, &out->text);

    if (st) {
        out->text.bytes = before;
        rk_str_append_bytes(&out->text, matches->text, matches->bytes);
        rk_status_free(st);
    }
    rk_array_append(&out->ends, out->text.bytes);
}

static void apply_replace(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                          const struct rk_token_texts *in, struct rk_token_texts *out)
{
    for (int64_t i = 0; i < in->ends.count; i++) {
        struct rk_matches matches = {.regex = &step->regex, .matcher = matcher};

        matches.text = text_at(in, i, &matches.bytes);
        replace_in(&matches, &step->content, out);
    }
}

static void apply_strip(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                        const struct rk_token_texts *in, struct rk_token_texts *out)
{
    size_t unit = step->content.bytes;

    (void)matcher;
    for (int64_t i = 0; i < in->ends.count; i++) {
        size_t begin = 0, end;
        const char *text = text_at(in, i, &end);

        for (int64_t n = 0; n < step->start && end - begin >= unit; n++) {
            if (memcmp(text + begin, step->content.text, unit) != 0)
                break;
            begin += unit;
        }
        for (int64_t n = 0; n < step->stop && end - begin >= unit; n++) {
            if (memcmp(text + end - unit, step->content.text, unit) != 0)
                break;
            end -= unit;
        }
        rk_token_texts_append(out, text + begin, end - begin);
    }
}

/* Markers become spaces; markers of the first token are dropped, unless no marker is prepended. */
static void apply_metaspace(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                            const struct rk_token_texts *in, struct rk_token_texts *out)
{
    struct rk_str space = {0}, nothing = {0};

    rk_str_append(&space, " ");
    for (int64_t i = 0; i < in->ends.count; i++) {
        struct rk_matches matches = {.regex = &step->regex, .matcher = matcher};

        matches.text = text_at(in, i, &matches.bytes);
        replace_in(&matches, i == 0 && step->drops_first_marker ? &nothing : &space, out);
    }
    rk_str_fini(&space);
}

static struct rk_status *read_replace(struct rk_decoder_step *step, const struct rk_json *json,
                                      const char *where)
{
    return rk_regex_read_replace(&step->regex, &step->content, json, where);
}

static struct rk_status *read_strip(struct rk_decoder_step *step, const struct rk_json *json,
                                    const char *where)
{
    RK_TRY(rk_component_char(&step->content, json, where, "content"));
    RK_TRY(rk_json_get_i64(json, where, "start", 0, INT32_MAX, &step->start));
    return rk_json_get_i64(json, where, "stop", 0, INT32_MAX, &step->stop);
}

static struct rk_status *read_metaspace(struct rk_decoder_step *step, const struct rk_json *json,
                                        const char *where)
{
    struct rk_metaspace metaspace = {0};

    RK_TRY(rk_metaspace_read(&metaspace, json, where));
    step->drops_first_marker = metaspace.prepend != RK_PREPEND_NEVER;
    step->regex.literal_bytes = metaspace.marker.bytes;
    step->regex.literal = rk_str_take(&metaspace.marker);
    return NULL;
}

static const struct {
    const char *type;
    void (*apply)(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                  const struct rk_token_texts *in, struct rk_token_texts *out);
    /* Optional: reads the step's keys. */
    struct rk_status *(*read)(struct rk_decoder_step *step, const struct rk_json *json, const char *where);
} decoders[] = {
    {"ByteFallback", apply_byte_fallback, NULL},
    {"ByteLevel", apply_byte_level, NULL},
    {"Fuse", apply_fuse, NULL},
    {"Metaspace", apply_metaspace, read_metaspace},
    {"Replace", apply_replace, read_replace},
    {"Strip", apply_strip, read_strip},
};

static struct rk_status *read_step(void *user, const struct rk_json *json, const char *where)
{
    struct rk_decoder *decoder = user;
    const char *type = rk_component_type(json);

    if (decoder->num_steps == RK_STEPS_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: more than %d steps", where, RK_STEPS_MAX);
    for (size_t i = 0; i < RK_ARRAY_LEN(decoders); i++) {
        struct rk_decoder_step *step = &decoder->steps[decoder->num_steps];

        if (strcmp(type, decoders[i].type) != 0)
            continue;
        decoder->num_steps++;
        step->apply = decoders[i].apply;
        return decoders[i].read ? decoders[i].read(step, json, where) : NULL;
    }
    return RK_FAIL(RK_UNIMPLEMENTED, "%s.type '%s' is not supported", where, type);
}

struct rk_status *rk_decoder_read(struct rk_decoder *decoder, const struct rk_json *json, const char *where)
{
    decoder->is_set = !rk_json_is_null(json);
    return rk_component_each(json, where, "decoders", read_step, decoder);
}

static void join_by_spaces(const struct rk_token_texts *texts, struct rk_str *out)
{
    for (int64_t i = 0; i < texts->ends.count; i++) {
        size_t bytes;
        const char *text = text_at(texts, i, &bytes);

        if (i > 0)
            rk_str_append(out, " ");
        rk_str_append_bytes(out, text, bytes);
    }
}

void rk_decoder_run(const struct rk_decoder *decoder, struct rk_matcher *matcher,
                    struct rk_token_texts *texts, struct rk_str *out)
{
    struct rk_token_texts next = {0};

    for (int i = 0; i < decoder->num_steps; i++) {
        struct rk_token_texts used = *texts;

        decoder->steps[i].apply(&decoder->steps[i], matcher, &used, &next);
        *texts = next;
        next = used;
        texts_clear(&next);
    }
    if (decoder->is_set)
        rk_str_append_bytes(out, rk_str_text(&texts->text), texts->text.bytes);
    else
        join_by_spaces(texts, out);
    texts_fini(&next);
    texts_fini(texts);
}

void rk_decoder_fini(struct rk_decoder *decoder)
{
    for (int i = 0; i < decoder->num_steps; i++) {
        rk_regex_fini(&decoder->steps[i].regex);
        rk_str_fini(&decoder->steps[i].content);
    }
}
