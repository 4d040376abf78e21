/* Parts of the tokenizer: byte alphabet, BPE model, pre-tokenizer, and the object that tokenizer_json.c
 * fills. */
#ifndef RK_TOKENIZER_INTERNAL_H
#define RK_TOKENIZER_INTERNAL_H

#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/rk_map.h"
#include "driver-cli/rk_tokenizer.h"

typedef RK_ARRAY(int32_t) rk_ids_t;

/* --- byte_alphabet.c: GPT-2's byte <-> printable code point table --- */
/* The UTF-8 text of a byte's code point (1 or 2 bytes), terminated. */
void rk_byte_alphabet_char(uint8_t byte, char out[4]);
/* Byte of the code point at *text, advancing it; -1 (and *text untouched) when it is not in the alphabet. */
int rk_byte_alphabet_read(const char **text);

/* --- bpe.c --- */
struct rk_merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;
    int32_t merged; /* id of the concatenation; -1: empty slot */
};

struct rk_bpe {
    struct rk_map *vocab;    /* token text -> id + 1 */
    struct rk_merge *merges; /* open addressing, num_slots a power of two */
    int64_t num_slots;
    int32_t byte_id[256]; /* id of each byte's character; -1 when the vocabulary lacks it */
    bool ignore_merges;   /* a word that is in the vocabulary is one token */
};

int32_t rk_bpe_find(const struct rk_bpe *bpe, const char *token); /* -1 when absent */
void rk_bpe_init_merges(struct rk_bpe *bpe, int64_t num_merges);
void rk_bpe_add_merge(struct rk_bpe *bpe, int32_t left, int32_t right, int32_t merged, int32_t rank);
/* Appends the ids of one word (raw bytes). INVALID_ARGUMENT for a byte that the vocabulary lacks. */
struct rk_status *rk_bpe_encode_word(const struct rk_bpe *bpe, const char *word, size_t bytes, rk_ids_t *out);
void rk_bpe_fini(struct rk_bpe *bpe);

/* --- pretokenizer.c --- */
#define RK_PRETOKENIZER_MAX_SPLITS 8

struct rk_pretokenizer {
    struct {
        void *code;        /* compiled pattern */
        bool keep_matches; /* what becomes a piece */
        bool keep_gaps;
    } splits[RK_PRETOKENIZER_MAX_SPLITS];
    int32_t num_splits;
    bool add_prefix_space;
};

/* UNIMPLEMENTED "unsupported pre-tokenizer regex" with the pattern when it does not compile. */
struct rk_status *rk_pretokenizer_add_split(struct rk_pretokenizer *pre, const char *pattern,
                                            bool keep_matches, bool keep_gaps) RK_NODISCARD;
/* Calls on_word for each piece, in order. */
struct rk_status *rk_pretokenizer_run(const struct rk_pretokenizer *pre, const char *text, size_t bytes,
                                      struct rk_status *(*on_word)(void *user, const char *word,
                                                                   size_t bytes),
                                      void *user) RK_NODISCARD;
void rk_pretokenizer_fini(struct rk_pretokenizer *pre);

/* --- tokenizer.c --- */
struct rk_added_token {
    char *content;
    size_t bytes;
    int32_t id;
    bool is_special;
    bool is_normalized; /* matched after normalisation instead of on the raw text */
};

struct rk_tokenizer {
    struct rk_bpe bpe;
    struct rk_pretokenizer pre;
    RK_ARRAY(struct rk_added_token) added;
    bool use_nfc;
    rk_ids_t prefix, suffix; /* of the post-processor, with add_special_tokens */
    const char *
        *token_text;     /* [num_ids]: key of the vocabulary or content of an added token; NULL for holes */
    uint8_t *token_kind; /* [num_ids]: enum rk_token_kind */
    int64_t num_ids;
};

enum rk_token_kind { RK_TOKEN_NONE, RK_TOKEN_MODEL, RK_TOKEN_ADDED, RK_TOKEN_SPECIAL };

/* tokenizer_json.c: fills a zeroed tokenizer. */
struct rk_status *rk_tokenizer_read_json(struct rk_tokenizer *tokenizer,
                                         const struct rk_json *root) RK_NODISCARD;

#endif
