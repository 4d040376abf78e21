/* Pre-tokenisation: steps that split a piece of text into words. Each step passes its pieces to the next one
 * as it finds them. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

struct run {
    const struct rk_pretokenizer *pre;
    struct rk_matcher *matcher;
    rk_word_fn_t on_word;
    void *user;
};

/* State of one step for a piece: the resulting piece that is pending until the next stretch is known. */
struct cutter {
    const struct run *run;
    int level;
    struct rk_piece piece;
    bool was_match;
    bool has_pending;
    size_t begin, end; /* of the pending piece */
};

static struct rk_status *run_step(const struct run *run, int level, struct rk_piece piece);

static struct rk_status *hand_on(const struct cutter *cutter, size_t begin, size_t end)
{
    struct rk_piece piece = {
        .text = cutter->piece.text + begin,
        .bytes = end - begin,
        .head = cutter->piece.head > begin ? cutter->piece.head - begin : 0,
    };

    return end > begin ? run_step(cutter->run, cutter->level + 1, piece) : NULL;
}

static struct rk_status *flush(struct cutter *cutter)
{
    bool has_pending = cutter->has_pending;

    cutter->has_pending = false;
    return has_pending ? hand_on(cutter, cutter->begin, cutter->end) : NULL;
}

/* Whether this stretch is joined to the pending one. */
static bool joins(const struct cutter *cutter, bool is_match)
{
    switch (cutter->run->pre->steps[cutter->level].behavior) {
    case RK_SPLIT_CONTIGUOUS:
        return is_match == cutter->was_match;
    case RK_SPLIT_MERGED_WITH_PREVIOUS:
        return is_match && !cutter->was_match;
    default: /* RK_SPLIT_MERGED_WITH_NEXT */
        return !is_match && cutter->was_match;
    }
}

/* Processes the next stretch of the piece: a match, or the text between two. */
static struct rk_status *feed(struct cutter *cutter, size_t begin, size_t end, bool is_match)
{
    const struct rk_pre_step *step = &cutter->run->pre->steps[cutter->level];

    is_match ^= step->invert;
    if (step->behavior == RK_SPLIT_ISOLATED)
        return hand_on(cutter, begin, end);
    if (step->behavior == RK_SPLIT_REMOVED)
        return is_match ? NULL : hand_on(cutter, begin, end);
    if (cutter->has_pending && joins(cutter, is_match)) {
        cutter->end = end;
    } else {
        RK_TRY(flush(cutter));
        cutter->has_pending = true;
        cutter->begin = begin;
        cutter->end = end;
    }
    cutter->was_match = is_match;
    return NULL;
}

static struct rk_status *cut_by_regex(const struct run *run, int level, struct rk_piece piece)
{
    struct cutter cutter = {.run = run, .level = level, .piece = piece};
    struct rk_matches matches = {.regex = &run->pre->steps[level].regex,
                                 .matcher = run->matcher,
                                 .text = piece.text,
                                 .bytes = piece.bytes};
    size_t done = 0;
    bool is_found;

    for (;;) {
        RK_TRY(rk_matches_next(&matches, &is_found));
        if (!is_found)
            break;
        if (matches.begin > done)
            RK_TRY(feed(&cutter, done, matches.begin, false));
        RK_TRY(feed(&cutter, matches.begin, matches.end, true));
        done = matches.end;
    }
    if (piece.bytes > done)
        RK_TRY(feed(&cutter, done, piece.bytes, false));
    return flush(&cutter);
}

static struct rk_status *cut_by_class(const struct run *run, int level, struct rk_piece piece)
{
    struct cutter cutter = {.run = run, .level = level, .piece = piece};
    size_t done = 0;
    int used;

    for (size_t at = 0; at < piece.bytes; at += (size_t)used) {
        if (!run->pre->steps[level].is_delimiter(rk_utf8_read(piece.text + at, &used)))
            continue;
        if (at > done)
            RK_TRY(feed(&cutter, done, at, false));
        done = at + (size_t)used;
        RK_TRY(feed(&cutter, at, done, true));
    }
    if (piece.bytes > done)
        RK_TRY(feed(&cutter, done, piece.bytes, false));
    return flush(&cutter);
}

enum char_class { CLASS_SPACE, CLASS_WORD, CLASS_OTHER };

static enum char_class class_of(int32_t c)
{
    return rk_char_is_word(c) ? CLASS_WORD : rk_char_is_space(c) ? CLASS_SPACE : CLASS_OTHER;
}

/* Whitespace: runs of word characters and runs of others, without the white space. */
static struct rk_status *cut_words(const struct run *run, int level, struct rk_piece piece)
{
    struct cutter cutter = {.run = run, .level = level, .piece = piece};
    enum char_class previous = CLASS_SPACE;
    size_t done = 0;
    int used;

    for (size_t at = 0; at < piece.bytes; at += (size_t)used) {
        enum char_class class = class_of(rk_utf8_read(piece.text + at, &used));

        if (class != previous) {
            if (previous != CLASS_SPACE)
                RK_TRY(hand_on(&cutter, done, at));
            done = at;
        }
        previous = class;
    }
    return previous == CLASS_SPACE ? NULL : hand_on(&cutter, done, piece.bytes);
}

/* Passes a changed text to the next step. */
static struct rk_status *go_on(const struct run *run, int level, struct rk_str *text, size_t head)
{
    struct rk_piece piece = {.text = rk_str_text(text), .bytes = text->bytes, .head = head};
    struct rk_status *st = NULL;

    if (text->bytes > RK_TEXT_BYTES_MAX)
        st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes once pre-tokenised",
                     RK_TEXT_BYTES_MAX);
    else
        st = run_step(run, level + 1, piece);
    rk_str_fini(text);
    return st;
}

static struct rk_status *add_prefix_space(const struct run *run, int level, struct rk_piece piece)
{
    struct rk_str text = {0};

    if (piece.text[0] == ' ')
        return run_step(run, level + 1, piece);
    rk_str_append(&text, " ");
    rk_str_append_bytes(&text, piece.text, piece.bytes);
    return go_on(run, level, &text, piece.head > 0 ? piece.head + 1 : 0);
}

static struct rk_status *spell_bytes(const struct run *run, int level, struct rk_piece piece)
{
    struct rk_str text = {0};

    rk_byte_alphabet_append(&text, piece.text, piece.bytes);
    return go_on(run, level, &text, RK_MIN(piece.head, (size_t)1));
}

static struct rk_status *mark_spaces(const struct run *run, int level, struct rk_piece piece)
{
    const struct rk_pre_step *step = &run->pre->steps[level];
    struct rk_str text = {0};
    bool has_marker =
        piece.text[0] == ' ' || (piece.bytes >= step->content.bytes &&
                                 memcmp(piece.text, step->content.text, step->content.bytes) == 0);
    size_t head = RK_MIN(piece.head, (size_t)1);

    if (!has_marker &&
        (step->prepend == RK_PREPEND_ALWAYS || (step->prepend == RK_PREPEND_FIRST && piece.head > 0))) {
        rk_str_append_bytes(&text, step->content.text, step->content.bytes);
        head += head > 0 ? step->content.bytes : 0;
    }
    for (size_t at = 0; at < piece.bytes;) {
        const char *space = memchr(piece.text + at, ' ', piece.bytes - at);
        size_t end = space ? (size_t)(space - piece.text) : piece.bytes;

        rk_str_append_bytes(&text, piece.text + at, end - at);
        if (space)
            rk_str_append_bytes(&text, step->content.text, step->content.bytes);
        at = end + 1;
    }
    return go_on(run, level, &text, head);
}

static struct rk_status *run_step(const struct run *run, int level, struct rk_piece piece)
{
    if (level == run->pre->num_steps)
        return run->on_word(run->user, piece.text, piece.bytes);
    switch (run->pre->steps[level].kind) {
    case RK_PRE_REGEX:
        return cut_by_regex(run, level, piece);
    case RK_PRE_CLASS:
        return cut_by_class(run, level, piece);
    case RK_PRE_WORDS:
        return cut_words(run, level, piece);
    case RK_PRE_PREFIX_SPACE:
        return add_prefix_space(run, level, piece);
    case RK_PRE_SPELL_BYTES:
        return spell_bytes(run, level, piece);
    default: /* RK_PRE_MARK_SPACES */
        return mark_spaces(run, level, piece);
    }
}

struct rk_status *rk_pretokenizer_run(const struct rk_pretokenizer *pre, struct rk_matcher *matcher,
                                      struct rk_piece piece, rk_word_fn_t on_word, void *user)
{
    struct run run = {.pre = pre, .matcher = matcher, .on_word = on_word, .user = user};

    return piece.bytes > 0 ? run_step(&run, 0, piece) : NULL;
}

void rk_pretokenizer_fini(struct rk_pretokenizer *pre)
{
    for (int i = 0; i < pre->num_steps; i++) {
        rk_regex_fini(&pre->steps[i].regex);
        rk_str_fini(&pre->steps[i].content);
    }
}
