/* Tokenizers: Hugging Face's tokenizer.json with a BPE model, byte-level (GPT-2, Llama-3, Qwen) or in the
 * manner of SentencePiece (Llama-2, Mistral, Gemma). docs/tokenizers.md lists the components.
 *
 * Untrusted input: sizes are bounded (64 MiB), the regular expressions run with match and depth limits.
 * Unsupported components of a file are UNIMPLEMENTED, naming them. Any number of threads may use one.
 */
#ifndef RK_TOKENIZER_H
#define RK_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

struct rk_tokenizer;

struct rk_tokenizer_ids {
    int32_t *items; /* rk_free */
    int64_t count;
};

struct rk_status *rk_tokenizer_create_file(struct rk_tokenizer **out, const char *path) RK_NODISCARD;
/* rk_tokenizer_create_file with tokens of tokenizer.json that other files name (rk_special_tokens_read_dir):
 * they are special here too, as in transformers. Tokens that it does not have are ignored. */
struct rk_status *rk_tokenizer_create_special(struct rk_tokenizer **out, const char *path,
                                              const struct rk_json *special) RK_NODISCARD;
struct rk_status *rk_tokenizer_create_json(struct rk_tokenizer **out, const char *text, size_t bytes,
                                           const char *source) RK_NODISCARD;
void rk_tokenizer_destroy(struct rk_tokenizer *tokenizer); /* NULL is a no-op */
/* Encoding text with a token whose id the model does not have, `vocab_size` or more, fails from here on. */
void rk_tokenizer_limit_ids(struct rk_tokenizer *tokenizer, int64_t vocab_size);
/* NUL is an ordinary character. Adds no ids if add_special_tokens is false. INVALID_ARGUMENT for text that is
 * not UTF-8, and for a character that the vocabulary has neither a token nor an unknown token for. */
struct rk_status *rk_tokenizer_encode(const struct rk_tokenizer *tokenizer, const char *text, size_t bytes,
                                      bool add_special_tokens, struct rk_tokenizer_ids *out) RK_NODISCARD;
/* Appends to `out`; bytes that are not UTF-8 become U+FFFD: with a ByteLevel decoder one for each maximal
 * subpart, with ByteFallback one for each byte of the run. Ids that the vocabulary does not have are skipped.
 */
void rk_tokenizer_decode(const struct rk_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                         bool skip_special_tokens, struct rk_str *out);
int32_t rk_tokenizer_find_token(const struct rk_tokenizer *tokenizer, const char *token); /* -1 when absent */
int64_t rk_tokenizer_vocab_size(const struct rk_tokenizer *tokenizer);                    /* largest id + 1 */

/* The special tokens that tokenizer_config.json and special_tokens_map.json of a directory name: an object
 * from "eos_token", "bos_token", ... to their texts, with "additional_special_tokens", a list of further
 * tokens. Without these files the object is empty. */
struct rk_status *rk_special_tokens_read_dir(struct rk_json **out, const char *dir) RK_NODISCARD;

RK_END_DECLS

#endif
