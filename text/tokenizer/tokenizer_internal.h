/* Parts of the tokenizer, in the order of processing: added tokens, normalizer, pre-tokenizer,
 * BPE model, post-processor; decoder for the reverse direction. Each part reads its own object of
 * tokenizer.json and refuses unsupported components by name. */
#ifndef RK_TOKENIZER_INTERNAL_H
#define RK_TOKENIZER_INTERNAL_H

#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/rk_map.h"
#include "text/rk_tokenizer.h"

#define RK_TOKEN_ID_MAX   (1 << 24)  /* far above any vocabulary: limits the id tables */
#define RK_TEXT_BYTES_MAX (64 << 20) /* of a text, and of its normalised form */
#define RK_STEPS_MAX      32         /* of a normalizer, pre-tokenizer or decoder, sequences flattened */

typedef RK_ARRAY(int32_t) rk_ids_t;

/* --- component.c: functions shared by the readers of components; `where` is the path of `json` in the file
 * --- */
typedef struct rk_status *(*rk_component_fn_t)(void *user, const struct rk_json *json, const char *where);

/* Metaspace's prepend_scheme. */
enum rk_prepend { RK_PREPEND_NEVER, RK_PREPEND_FIRST, RK_PREPEND_ALWAYS };

struct rk_metaspace {
    struct rk_str marker; /* rk_str_fini */
    enum rk_prepend prepend;
    bool split;
};

const char *rk_component_type(const struct rk_json *json); /* "" when it has none */
/* Calls `read` for the component, or for each of a Sequence's under `list`, nested ones too; not for null. */
struct rk_status *rk_component_each(const struct rk_json *json, const char *where, const char *list,
                                    rk_component_fn_t read, void *user) RK_NODISCARD;
/* Appends a required string, or one of one character. NULs included. */
struct rk_status *rk_component_string(struct rk_str *out, const struct rk_json *json, const char *where,
                                      const char *key) RK_NODISCARD;
struct rk_status *rk_component_char(struct rk_str *out, const struct rk_json *json, const char *where,
                                    const char *key) RK_NODISCARD;
struct rk_status *rk_metaspace_read(struct rk_metaspace *out, const struct rk_json *json,
                                    const char *where) RK_NODISCARD;

/* --- chars.c: classes of characters, as defined by Rust's char and regex crate --- */
bool rk_char_is_space(int32_t c);
bool rk_char_is_numeric(int32_t c);
bool rk_char_is_punctuation(int32_t c);
bool rk_char_is_word(int32_t c);
bool rk_char_is_mark(int32_t c);
bool rk_text_is_ascii(const char *text, size_t bytes);
bool rk_text_is_utf8(const char *text, size_t bytes); /* NUL is a character */

/* Offset of the character that ends at `end` > 0. */
static inline size_t rk_char_before(const char *text, size_t end)
{
    do
        end--;
    while (end > 0 && ((uint8_t)text[end] & 0xc0) == 0x80);
    return end;
}

/* --- byte_alphabet.c: GPT-2's byte <-> printable code point table --- */
int32_t rk_byte_alphabet_code_point(uint8_t byte);
int rk_byte_alphabet_byte(int32_t code_point); /* -1 when it is not in the alphabet */
void rk_byte_alphabet_append(struct rk_str *out, const char *text, size_t bytes);

/* --- regex_syntax.c, regex.c: patterns of tokenizer.json, which are Oniguruma's, run by PCRE2 --- */
struct rk_regex {
    void *code;    /* compiled pattern; NULL: `literal` is searched */
    char *literal; /* not empty */
    size_t literal_bytes;
};

/* State of one thread for matching. */
struct rk_matcher;

struct rk_matcher *rk_matcher_create(void);
void rk_matcher_destroy(struct rk_matcher *matcher);

/* Appends the pattern in PCRE2's syntax. UNIMPLEMENTED for constructs without equivalent. */
struct rk_status *rk_regex_translate(struct rk_str *out, const char *pattern, size_t bytes) RK_NODISCARD;
/* Reads {"String": ...} or {"Regex": ...}; `where` is the path of `json`. UNIMPLEMENTED with the pattern when
 * it does not compile. */
struct rk_status *rk_regex_read(struct rk_regex *out, const struct rk_json *json,
                                const char *where) RK_NODISCARD;
/* The keys of a Replace: `pattern`, and `content`, which is appended to *content. */
struct rk_status *rk_regex_read_replace(struct rk_regex *pattern, struct rk_str *content,
                                        const struct rk_json *json, const char *where) RK_NODISCARD;
struct rk_status *rk_regex_compile(struct rk_regex *out, const char *pattern, size_t bytes) RK_NODISCARD;
void rk_regex_fini(struct rk_regex *regex);

/* Zeroed but for the first four; then rk_matches_next, which sets `begin` and `end` as long as it finds one.
 */
struct rk_matches {
    const struct rk_regex *regex;
    struct rk_matcher *matcher;
    const char *text;
    size_t bytes;
    size_t begin, end;
    size_t at;
    bool is_after_match; /* the match before this one ended at `at` */
};

struct rk_status *rk_matches_next(struct rk_matches *matches, bool *is_found) RK_NODISCARD;
/* Appends the text with every match replaced. RESOURCE_EXHAUSTED beyond RK_TEXT_BYTES_MAX. */
struct rk_status *rk_matches_replace(struct rk_matches *matches, const struct rk_str *content,
                                     struct rk_str *out) RK_NODISCARD;

/* A piece of text that is being processed. */
struct rk_piece {
    const char *text;
    size_t bytes;
    size_t head; /* bytes at its front that come from the first character of the whole text; often 0 */
};

/* --- normalizer.c --- */
struct rk_normalizer_step {
    /* Writes the result to `out` and sets the piece to it, or leaves the piece unchanged. */
    struct rk_status *(*apply)(const struct rk_normalizer_step *step, struct rk_matcher *matcher,
                               struct rk_piece *piece, struct rk_str *out);
    struct rk_regex regex;
    struct rk_str content; /* the prepended text, or the replacement of a match */
    int form;              /* utf8proc's options of a Unicode normalisation form */
    bool strip_left, strip_right;
};

struct rk_normalizer {
    struct rk_normalizer_step steps[RK_STEPS_MAX];
    int num_steps;
};

struct rk_status *rk_normalizer_read(struct rk_normalizer *normalizer, const struct rk_json *json,
                                     const char *where) RK_NODISCARD;
/* Sets `piece` to the normalised text, which is in `buf` unless the text is unchanged. */
struct rk_status *rk_normalizer_run(const struct rk_normalizer *normalizer, struct rk_matcher *matcher,
                                    struct rk_piece *piece, struct rk_str *buf) RK_NODISCARD;
void rk_normalizer_fini(struct rk_normalizer *normalizer);

/* --- pretokenizer.c, pretokenizer_json.c --- */
enum rk_split_behavior {
    RK_SPLIT_REMOVED,
    RK_SPLIT_ISOLATED,
    RK_SPLIT_MERGED_WITH_PREVIOUS,
    RK_SPLIT_MERGED_WITH_NEXT,
    RK_SPLIT_CONTIGUOUS,
};

enum rk_pre_kind {
    RK_PRE_REGEX,        /* cuts at matches of regex */
    RK_PRE_CLASS,        /* cuts at characters of a class */
    RK_PRE_WORDS,        /* runs of word characters and runs of others, without white space */
    RK_PRE_PREFIX_SPACE, /* prepends a space unless there is one */
    RK_PRE_SPELL_BYTES,  /* bytes become the byte alphabet's characters */
    RK_PRE_MARK_SPACES,  /* spaces become content, which may be prepended */
};

/* A component of the file is one step or several: ByteLevel adds a space, cuts, spells the bytes. */
struct rk_pre_step {
    enum rk_pre_kind kind;
    enum rk_split_behavior behavior; /* REGEX, CLASS */
    bool invert;                     /* text between matches counts as a match */
    struct rk_regex regex;
    bool (*is_delimiter)(int32_t c);
    struct rk_str content;
    enum rk_prepend prepend; /* MARK_SPACES */
};

struct rk_pretokenizer {
    struct rk_pre_step steps[RK_STEPS_MAX];
    int num_steps;
};

typedef struct rk_status *(*rk_word_fn_t)(void *user, const char *word, size_t bytes);

struct rk_status *rk_pretokenizer_read(struct rk_pretokenizer *pre, const struct rk_json *json,
                                       const char *where) RK_NODISCARD;
/* Calls on_word for each word, in order. */
struct rk_status *rk_pretokenizer_run(const struct rk_pretokenizer *pre, struct rk_matcher *matcher,
                                      struct rk_piece piece, rk_word_fn_t on_word, void *user) RK_NODISCARD;
/* Drops a last step that spells bytes: false when there is none. Words are raw bytes from then on. */
bool rk_pretokenizer_drop_spelling(struct rk_pretokenizer *pre);
void rk_pretokenizer_fini(struct rk_pretokenizer *pre);

/* --- bpe.c, bpe_merge.c, bpe_json.c --- */
#define RK_BPE_NO_MERGE UINT64_MAX
#define RK_CHAR_PAGES   0x1100 /* of 256 code points */

struct rk_merge {
    uint64_t pair;  /* left id << 32 | right id */
    uint64_t merge; /* rank << 32 | id of the concatenation; RK_BPE_NO_MERGE: empty slot */
};

struct rk_bpe {
    struct rk_map *vocab;    /* token text -> id + 1 */
    struct rk_merge *merges; /* open addressing, num_slots a power of two */
    int64_t num_slots;
    size_t max_token_bytes;
    int32_t *char_ids[RK_CHAR_PAGES]; /* ids of tokens of one character, -1 for none; NULL: a page without */
    int32_t byte_ids[256];            /* ids of the byte alphabet's characters; -1 for none */
    int32_t fallback_ids[256];        /* ids of "<0xHH>"; -1 for none */
    int32_t unk_id;                   /* -1: none */
    bool fuse_unk;
    bool byte_fallback;
    bool ignore_merges; /* a word that is in the vocabulary is one token */
    bool reads_bytes;   /* words are raw bytes, represented by the byte alphabet's characters */
    bool cuts_words;    /* no merge crosses the start of a "▁" that follows a byte without joins[] */
    bool joins[256];
};

/* Working memory of one thread, with a cache of words. */
struct rk_bpe_scratch {
    struct rk_cached_word *cache;
    RK_ARRAY(int32_t) symbols;
    RK_ARRAY(uint64_t) heap;
    struct rk_link *links;
    int64_t max_links;
};

struct rk_status *rk_bpe_read(struct rk_bpe *bpe, const struct rk_json *model) RK_NODISCARD;
int32_t rk_bpe_find(const struct rk_bpe *bpe, const char *token, size_t bytes); /* -1 when absent */
void rk_bpe_init_merges(struct rk_bpe *bpe, int64_t num_merges);
void rk_bpe_put_merge(struct rk_bpe *bpe, int32_t left, int32_t right, uint64_t merge);
uint64_t rk_bpe_find_merge(const struct rk_bpe *bpe, int32_t left, int32_t right);
/* Appends the ids of one word. INVALID_ARGUMENT for a character without a token in the vocabulary. */
struct rk_status *rk_bpe_encode(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch, const char *word,
                                size_t bytes, rk_ids_t *out) RK_NODISCARD;
/* Merges scratch->symbols in place. */
void rk_bpe_merge(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch);
void rk_bpe_scratch_fini(struct rk_bpe_scratch *scratch);
void rk_bpe_fini(struct rk_bpe *bpe);

/* --- added_tokens.c --- */
struct rk_added_token {
    struct rk_str content;
    struct rk_str
        normal; /* content, normalised if is_normalized: the text to search for, and the decoded text */
    int32_t id;
    bool is_special;
    bool is_normalized; /* matched after normalisation instead of on the raw text */
    bool is_single_word, strips_left, strips_right;
};

/* A tree of the bytes of all contents of one pass. */
struct rk_token_tree {
    struct rk_token_node *items; /* an RK_ARRAY */
    int64_t count, capacity;
    int32_t first[256]; /* node of a content's first byte; 0: none */
};

struct rk_added_tokens {
    RK_ARRAY(struct rk_added_token) tokens;
    struct rk_token_tree trees[2]; /* [is_normalized] */
};

/* Called for each stretch of text between added tokens, and for each of these. */
struct rk_added_events {
    struct rk_status *(*on_text)(void *user, struct rk_piece piece);
    void (*on_token)(void *user, int32_t id);
    void *user;
};

/* After model and normalizer were read. */
struct rk_status *rk_added_tokens_read(struct rk_tokenizer *tokenizer,
                                       const struct rk_json *json) RK_NODISCARD;
/* Builds the trees from `tokens`. */
void rk_added_tokens_index(struct rk_added_tokens *added);
struct rk_status *rk_added_tokens_cut(const struct rk_added_tokens *added, bool is_normalized,
                                      struct rk_piece piece,
                                      const struct rk_added_events *events) RK_NODISCARD;
void rk_added_tokens_fini(struct rk_added_tokens *added);

/* --- special_tokens.c --- */
/* Makes the tokens that `special` (rk_special_tokens_read_dir, or NULL) names special in `root`, the content
 * of tokenizer.json. */
void rk_special_tokens_mark(struct rk_json *root, const struct rk_json *special);

/* --- post_processor.c: ids added around the text by add_special_tokens --- */
struct rk_around {
    rk_ids_t prefix, suffix;
};

struct rk_status *rk_post_processor_read(struct rk_around *around, const struct rk_json *json,
                                         const char *where) RK_NODISCARD;

/* --- decoder.c --- */
/* Concatenated texts of tokens. */
struct rk_token_texts {
    struct rk_str text;
    RK_ARRAY(size_t) ends;
};

struct rk_decoder_step {
    void (*apply)(const struct rk_decoder_step *step, struct rk_matcher *matcher,
                  const struct rk_token_texts *in, struct rk_token_texts *out);
    struct rk_regex regex;
    struct rk_str content; /* the replacement of a match; the character that is stripped */
    int64_t start, stop;
    bool drops_first_marker; /* Metaspace */
};

struct rk_decoder {
    struct rk_decoder_step steps[RK_STEPS_MAX];
    int num_steps;
    bool is_set; /* without a decoder tokens are joined by spaces */
};

struct rk_status *rk_decoder_read(struct rk_decoder *decoder, const struct rk_json *json,
                                  const char *where) RK_NODISCARD;
void rk_token_texts_append(struct rk_token_texts *texts, const char *text, size_t bytes);
/* Appends the text of the tokens; uses their memory. */
void rk_decoder_run(const struct rk_decoder *decoder, struct rk_matcher *matcher,
                    struct rk_token_texts *texts, struct rk_str *out);
void rk_decoder_fini(struct rk_decoder *decoder);

/* --- tokenizer.c --- */
enum rk_token_kind { RK_TOKEN_NONE, RK_TOKEN_PLAIN, RK_TOKEN_SPECIAL };

struct rk_token {
    const char *text; /* as the decoder gets it: key of the vocabulary or text of an added token */
    uint32_t bytes;
    uint32_t kind; /* enum rk_token_kind */
};

/* Working memory of one call. The tokenizer keeps one between calls; concurrent calls create their own.
 */
struct rk_scratch {
    struct rk_matcher *matcher;
    struct rk_bpe_scratch bpe;
};

struct rk_tokenizer {
    struct rk_bpe bpe;
    struct rk_added_tokens added;
    struct rk_normalizer normalizer;
    struct rk_pretokenizer pre;
    struct rk_decoder decoder;
    struct rk_around around;
    struct rk_token *tokens; /* [num_ids] */
    int64_t num_ids;
    int64_t model_ids;                     /* that the model has */
    _Atomic(struct rk_scratch *) *scratch; /* NULL while a call uses it */
};

/* tokenizer_json.c: fills a zeroed tokenizer. */
struct rk_status *rk_tokenizer_read_json(struct rk_tokenizer *tokenizer,
                                         const struct rk_json *root) RK_NODISCARD;

#endif
