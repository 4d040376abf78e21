/* Normalizers of tokenizer.json: steps from text to text, each on a whole piece between added tokens. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

#include "base/rk_alloc.h"

/* The piece is `out` from now on. */
static struct rk_status *set_text(struct rk_piece *piece, const struct rk_str *out)
{
    piece->text = rk_str_text(out);
    piece->bytes = out->bytes;
    return NULL;
}

static struct rk_status *apply_form(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                                    struct rk_piece *piece, struct rk_str *out)
{
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t bytes;

    (void)matcher;
    if (rk_text_is_ascii(piece->text, piece->bytes))
        return NULL;
    bytes = utf8proc_map((const utf8proc_uint8_t *)piece->text, (utf8proc_ssize_t)piece->bytes, &normal,
                         (utf8proc_option_t)step->form);
    if (bytes < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "normalisation: %s", utf8proc_errmsg(bytes));
    rk_str_append_bytes(out, (const char *)normal, (size_t)bytes);
    piece->head = RK_MIN(piece->head, (size_t)1);
    rk_free(normal);
    return set_text(piece, out);
}

static struct rk_status *apply_lowercase(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                                         struct rk_piece *piece, struct rk_str *out)
{
    int used;

    (void)step;
    (void)matcher;
    for (size_t at = 0; at < piece->bytes; at += (size_t)used) {
        int32_t c = rk_utf8_read(piece->text + at, &used);

        if (c == 0x130) /* the only character whose lower case has two characters */
            rk_str_append(out, "i\xcc\x87");
        else
            rk_utf8_append(out, utf8proc_tolower(c));
    }
    piece->head = RK_MIN(piece->head, (size_t)1);
    return set_text(piece, out);
}

static struct rk_status *apply_strip(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                                     struct rk_piece *piece, struct rk_str *out)
{
    size_t begin = 0, end = piece->bytes;
    int used;

    (void)matcher;
    while (step->strip_left && begin < end && rk_char_is_space(rk_utf8_read(piece->text + begin, &used)))
        begin += (size_t)used;
    while (step->strip_right && end > begin) {
        size_t last = rk_char_before(piece->text, end);

        if (!rk_char_is_space(rk_utf8_read(piece->text + last, &used)))
            break;
        end = last;
    }
    rk_str_append_bytes(out, piece->text + begin, end - begin);
    piece->head -= RK_MIN(piece->head, begin);
    return set_text(piece, out);
}

static struct rk_status *apply_strip_accents(const struct rk_normalizer_step *step,
                                             struct rk_matcher *matcher, struct rk_piece *piece,
                                             struct rk_str *out)
{
    int used;

    (void)step;
    (void)matcher;
    for (size_t at = 0; at < piece->bytes; at += (size_t)used) {
        if (!rk_char_is_mark(rk_utf8_read(piece->text + at, &used)))
            rk_str_append_bytes(out, piece->text + at, (size_t)used);
        else if (at < piece->head)
            piece->head -= RK_MIN(piece->head, (size_t)used);
    }
    return set_text(piece, out);
}

static struct rk_status *apply_prepend(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                                       struct rk_piece *piece, struct rk_str *out)
{
    (void)matcher;
    rk_str_append_bytes(out, rk_str_text(&step->content), step->content.bytes);
    rk_str_append_bytes(out, piece->text, piece->bytes);
    piece->head += piece->head > 0 ? step->content.bytes : 0;
    return set_text(piece, out);
}

static struct rk_status *apply_replace(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                                       struct rk_piece *piece, struct rk_str *out)
{
    struct rk_matches matches = {
        .regex = &step->regex, .matcher = matcher, .text = piece->text, .bytes = piece->bytes};
    struct rk_matches first = matches;
    bool is_found;

    RK_TRY(rk_matches_next(&first, &is_found));
    if (!is_found)
        return NULL;
    /* What replaces a match belongs to the match's last character. */
    if (first.begin == 0 && first.end > 0 && piece->head > 0)
        piece->head = first.end <= piece->head ? piece->head - first.end + step->content.bytes : 0;
    RK_TRY(rk_matches_replace(&matches, &step->content, out));
    return set_text(piece, out);
}

static struct rk_status *read_form(struct rk_normalizer_step *step, const struct rk_json *json,
                                   const char *where)
{
    const char *type = rk_component_type(json);

    (void)where;
    step->form = UTF8PROC_STABLE | (type[strlen(type) - 1] == 'C' ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (type[2] == 'K')
        step->form |= UTF8PROC_COMPAT;
    return NULL;
}

static struct rk_status *read_strip(struct rk_normalizer_step *step, const struct rk_json *json,
                                    const char *where)
{
    RK_TRY(rk_json_get_bool(json, where, "strip_left", &step->strip_left));
    return rk_json_get_bool(json, where, "strip_right", &step->strip_right);
}

static struct rk_status *read_prepend(struct rk_normalizer_step *step, const struct rk_json *json,
                                      const char *where)
{
    return rk_component_string(&step->content, json, where, "prepend");
}

static struct rk_status *read_replace(struct rk_normalizer_step *step, const struct rk_json *json,
                                      const char *where)
{
    return rk_regex_read_replace(&step->regex, &step->content, json, where);
}

static const struct {
    const char *type;
    struct rk_status *(*apply)(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                               struct rk_piece *piece, struct rk_str *out);
    /* Optional: reads the step's keys. */
    struct rk_status *(*read)(struct rk_normalizer_step *step, const struct rk_json *json, const char *where);
} normalizers[] = {
    {"NFC", apply_form, read_form},
    {"NFD", apply_form, read_form},
    {"NFKC", apply_form, read_form},
    {"NFKD", apply_form, read_form},
    {"Lowercase", apply_lowercase, NULL},
    {"Strip", apply_strip, read_strip},
    {"StripAccents", apply_strip_accents, NULL},
    {"Prepend", apply_prepend, read_prepend},
    {"Replace", apply_replace, read_replace},
};

static struct rk_status *read_step(void *user, const struct rk_json *json, const char *where)
{
    struct rk_normalizer *normalizer = user;
    const char *type = rk_component_type(json);

    if (normalizer->num_steps == RK_STEPS_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: more than %d steps", where, RK_STEPS_MAX);
    for (size_t i = 0; i < RK_ARRAY_LEN(normalizers); i++) {
        struct rk_normalizer_step *step = &normalizer->steps[normalizer->num_steps];

        if (strcmp(type, normalizers[i].type) != 0)
            continue;
        normalizer->num_steps++;
        step->apply = normalizers[i].apply;
        return normalizers[i].read ? normalizers[i].read(step, json, where) : NULL;
    }
    return RK_FAIL(RK_UNIMPLEMENTED, "%s.type '%s' is not supported", where, type);
}

struct rk_status *rk_normalizer_read(struct rk_normalizer *normalizer, const struct rk_json *json,
                                     const char *where)
{
    return rk_component_each(json, where, "normalizers", read_step, normalizer);
}

struct rk_status *rk_normalizer_run(const struct rk_normalizer *normalizer, struct rk_matcher *matcher,
                                    struct rk_piece *piece, struct rk_str *buf)
{
    struct rk_str out = {0};
    struct rk_status *st = NULL;

    for (int i = 0; i < normalizer->num_steps && piece->bytes > 0 && !st; i++) {
        const char *before = piece->text;

        rk_str_clear(&out);
        st = normalizer->steps[i].apply(&normalizer->steps[i], matcher, piece, &out);
        if (!st && piece->bytes > RK_TEXT_BYTES_MAX)
            st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes once normalised",
                         RK_TEXT_BYTES_MAX);
        if (piece->text != before) {
            struct rk_str used = out;

            out = *buf;
            *buf = used;
        }
    }
    rk_str_fini(&out);
    return st;
}

void rk_normalizer_fini(struct rk_normalizer *normalizer)
{
    for (int i = 0; i < normalizer->num_steps; i++) {
        rk_regex_fini(&normalizer->steps[i].regex);
        rk_str_fini(&normalizer->steps[i].content);
    }
}
