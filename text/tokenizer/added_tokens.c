/* Added tokens: found in the text before the model sees it, leftmost-longest, by a tree over the bytes of
 * their contents. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct rk_token_node {
    int32_t child, sibling; /* 0: none */
    int32_t token;          /* index of the token that ends here; -1: none */
    uint8_t byte;
};

static int32_t new_node(struct rk_token_tree *tree, uint8_t byte)
{
    struct rk_token_node node = {.token = -1, .byte = byte};

    if (tree->count == 0) /* node 0 means none */
        rk_array_append(tree, node);
    rk_array_append(tree, node);
    return (int32_t)tree->count - 1;
}

static int32_t find_child(const struct rk_token_tree *tree, int32_t node, uint8_t byte)
{
    int32_t child = tree->items[node].child;

    while (child != 0 && tree->items[child].byte != byte)
        child = tree->items[child].sibling;
    return child;
}

static void put_text(struct rk_token_tree *tree, const struct rk_str *text, int32_t token)
{
    int32_t node = tree->first[(uint8_t)text->text[0]];

    if (node == 0)
        node = tree->first[(uint8_t)text->text[0]] = new_node(tree, (uint8_t)text->text[0]);
    for (size_t i = 1; i < text->bytes; i++) {
        int32_t child = find_child(tree, node, (uint8_t)text->text[i]);

        if (child == 0) {
            child = new_node(tree, (uint8_t)text->text[i]);
            tree->items[child].sibling = tree->items[node].child;
            tree->items[node].child = child;
        }
        node = child;
    }
    if (tree->items[node].token < 0) /* among equal ones the first */
        tree->items[node].token = token;
}

/* Index of the longest token at the front of the text, -1 when there is none. */
static int32_t find_token(const struct rk_token_tree *tree, const char *text, size_t bytes)
{
    int32_t node = tree->first[(uint8_t)text[0]], token = -1;

    for (size_t i = 1; node != 0; i++) {
        if (tree->items[node].token >= 0)
            token = tree->items[node].token;
        node = i < bytes ? find_child(tree, node, (uint8_t)text[i]) : 0;
    }
    return token;
}

static bool is_inside_word(const struct rk_piece *piece, size_t begin, size_t end)
{
    int used;

    if (begin > 0 && rk_char_is_word(rk_utf8_read(piece->text + rk_char_before(piece->text, begin), &used)))
        return true;
    return end < piece->bytes && rk_char_is_word(rk_utf8_read(piece->text + end, &used));
}

/* Offset of the white space that ends at `at`, but not before `least`. */
static size_t space_before(const struct rk_piece *piece, size_t at, size_t least)
{
    int used;

    while (at > least) {
        size_t before = rk_char_before(piece->text, at);

        if (!rk_char_is_space(rk_utf8_read(piece->text + before, &used)))
            break;
        at = before;
    }
    return at;
}

static size_t space_after(const struct rk_piece *piece, size_t at)
{
    int used;

    while (at < piece->bytes && rk_char_is_space(rk_utf8_read(piece->text + at, &used)))
        at += (size_t)used;
    return at;
}

static struct rk_status *emit_text(const struct rk_piece *piece, size_t begin, size_t end,
                                   const struct rk_added_events *events)
{
    struct rk_piece part = {.text = piece->text + begin,
                            .bytes = end - begin,
                            .head = piece->head > begin ? piece->head - begin : 0};

    return end > begin ? events->on_text(events->user, part) : NULL;
}

/* The search continues after the token's own end, also if the token was rejected or includes white space, as
 * in the reference library. */
struct rk_status *rk_added_tokens_cut(const struct rk_added_tokens *added, bool is_normalized,
                                      struct rk_piece piece, const struct rk_added_events *events)
{
    const struct rk_token_tree *tree = &added->trees[is_normalized];
    size_t done = 0, begin = 0;

    while (tree->count > 0 && begin < piece.bytes) {
        const struct rk_added_token *token;
        int32_t index = -1;
        size_t end, from;

        if (tree->first[(uint8_t)piece.text[begin]] != 0)
            index = find_token(tree, piece.text + begin, piece.bytes - begin);
        if (index < 0) {
            begin++;
            continue;
        }
        token = &added->tokens.items[index];
        end = begin + token->normal.bytes;
        from = token->strips_left ? space_before(&piece, begin, RK_MIN(begin, done)) : begin;
        begin = end;
        if (token->is_single_word && is_inside_word(&piece, end - token->normal.bytes, end))
            continue;
        RK_TRY(emit_text(&piece, done, from, events));
        events->on_token(events->user, token->id);
        done = token->strips_right ? space_after(&piece, end) : end;
    }
    return emit_text(&piece, done, piece.bytes, events);
}

void rk_added_tokens_index(struct rk_added_tokens *added)
{
    for (int64_t i = 0; i < added->tokens.count; i++)
        put_text(&added->trees[added->tokens.items[i].is_normalized], &added->tokens.items[i].normal,
                 (int32_t)i);
}

void rk_added_tokens_fini(struct rk_added_tokens *added)
{
    for (int64_t i = 0; i < added->tokens.count; i++) {
        rk_str_fini(&added->tokens.items[i].content);
        rk_str_fini(&added->tokens.items[i].normal);
    }
    rk_array_fini(&added->tokens);
    rk_array_fini(&added->trees[0]);
    rk_array_fini(&added->trees[1]);
}
