#include "rl/data/parquet/decode_internal.h"

#include <string.h>

#include "rl/data/parquet/thrift_internal.h"

#define DELTA_VALUES_MAX (1 << 26) /* of a page */

bool rk_parquet_is_dictionary(int encoding)
{
    return encoding == RK_PARQUET_ENCODING_PLAIN_DICTIONARY || encoding == RK_PARQUET_ENCODING_RLE_DICTIONARY;
}

uint64_t rk_parquet_little(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static bool take_varint(struct rk_parquet_span *in, uint64_t *value)
{
    struct rk_thrift thrift = {.at = in->at, .end = in->end};

    *value = rk_thrift_varint(&thrift);
    in->at = thrift.at;
    return !thrift.is_bad;
}

static size_t left_of(const struct rk_parquet_span *in)
{
    return (size_t)(in->end - in->at);
}

/* `width` bits from position `bit` on, lowest first, of which the caller has checked the bytes. */
static uint64_t unpack(const uint8_t *bits, uint64_t bit, int width)
{
    uint64_t value = 0;

    for (int have = 0; have < width;) {
        int skip = (int)(bit % 8), take = RK_MIN(8 - skip, width - have);

        value |= (uint64_t)((bits[bit / 8] >> skip) & ((1 << take) - 1)) << have;
        bit += (uint64_t)take;
        have += take;
    }
    return value;
}

/* --- runs --- */

void rk_parquet_runs_init(struct rk_parquet_runs *runs, struct rk_parquet_span in, int width)
{
    *runs = (struct rk_parquet_runs){.in = in, .width = width};
}

static bool begin_run(struct rk_parquet_runs *runs)
{
    int value_bytes = (runs->width + 7) / 8;
    uint64_t head;

    if (!take_varint(&runs->in, &head) || head >> 1 == 0)
        return false;
    runs->is_packed = head & 1;
    if (runs->is_packed) {
        uint64_t bytes = (head >> 1) * (uint64_t)runs->width; /* of groups of 8 values */

        if (head >> 1 > UINT32_MAX)
            return false;
        bytes = RK_MIN(bytes, left_of(&runs->in)); /* some writers cut the last group */
        runs->bits = runs->in.at;
        runs->bit = 0;
        runs->left = runs->width > 0 ? bytes * 8 / (uint64_t)runs->width : (head >> 1) * 8;
        runs->in.at += bytes;
        return runs->left > 0;
    }
    if (left_of(&runs->in) < (size_t)value_bytes)
        return false;
    runs->left = head >> 1;
    runs->value = (uint32_t)rk_parquet_little(runs->in.at, value_bytes);
    runs->in.at += value_bytes;
    return true;
}

bool rk_parquet_runs_next(struct rk_parquet_runs *runs, uint32_t *value)
{
    if (runs->left == 0 && !begin_run(runs))
        return false;
    runs->left--;
    *value = runs->value;
    if (runs->is_packed) {
        *value = (uint32_t)unpack(runs->bits, runs->bit, runs->width);
        runs->bit += (uint64_t)runs->width;
    }
    return true;
}

/* --- deltas --- */

static int64_t zigzag(uint64_t value)
{
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static bool deltas_init(struct rk_parquet_deltas *deltas, struct rk_parquet_span in)
{
    uint64_t block, first;

    *deltas = (struct rk_parquet_deltas){.in = in};
    if (!take_varint(&deltas->in, &block) || !take_varint(&deltas->in, &deltas->num_miniblocks) ||
        !take_varint(&deltas->in, &deltas->total) || !take_varint(&deltas->in, &first))
        return false;
    if (block == 0 || block > 1 << 20 || deltas->num_miniblocks == 0 || deltas->num_miniblocks > block ||
        block % deltas->num_miniblocks != 0 || deltas->total > DELTA_VALUES_MAX)
        return false;
    deltas->per_miniblock = block / deltas->num_miniblocks;
    deltas->value = zigzag(first);
    deltas->index = deltas->per_miniblock;
    deltas->miniblock = deltas->num_miniblocks;
    return true;
}

static bool begin_miniblock(struct rk_parquet_deltas *deltas)
{
    uint64_t min_delta, bytes;

    if (deltas->miniblock == deltas->num_miniblocks) {
        if (!take_varint(&deltas->in, &min_delta) || left_of(&deltas->in) < deltas->num_miniblocks)
            return false;
        deltas->min_delta = zigzag(min_delta);
        deltas->widths = deltas->in.at;
        deltas->in.at += deltas->num_miniblocks;
        deltas->miniblock = 0;
    }
    bytes = (deltas->per_miniblock * deltas->widths[deltas->miniblock] + 7) / 8;
    if (deltas->widths[deltas->miniblock] > 64 || bytes > left_of(&deltas->in))
        return false;
    deltas->bits = deltas->in.at;
    deltas->in.at += bytes;
    deltas->index = 0;
    deltas->miniblock++;
    return true;
}

static bool deltas_next(struct rk_parquet_deltas *deltas, int64_t *value)
{
    int width;

    if (deltas->read >= deltas->total)
        return false;
    if (deltas->read++ > 0) {
        if (deltas->index == deltas->per_miniblock && !begin_miniblock(deltas))
            return false;
        width = deltas->widths[deltas->miniblock - 1];
        deltas->value = (int64_t)((uint64_t)deltas->value + (uint64_t)deltas->min_delta +
                                  unpack(deltas->bits, deltas->index * (uint64_t)width, width));
        deltas->index++;
    }
    *value = deltas->value;
    return true;
}

/* Starts to read deltas at `in`, and moves `in` to what follows them. */
static bool split_deltas(struct rk_parquet_deltas *deltas, struct rk_parquet_span *in)
{
    struct rk_parquet_deltas scan;
    int64_t value;

    if (!deltas_init(deltas, *in))
        return false;
    scan = *deltas;
    while (scan.read < scan.total) {
        if (!deltas_next(&scan, &value))
            return false;
    }
    *in = scan.in;
    return true;
}

/* --- values --- */

static int width_of(const struct rk_parquet_node *leaf)
{
    static const int bytes[] = {[RK_PARQUET_INT32] = 4,
                                [RK_PARQUET_INT64] = 8,
                                [RK_PARQUET_INT96] = 12,
                                [RK_PARQUET_FLOAT] = 4,
                                [RK_PARQUET_DOUBLE] = 8};

    return leaf->type == RK_PARQUET_FIXED ? (int)leaf->type_bytes : bytes[leaf->type];
}

static void set_fixed(const struct rk_parquet_node *leaf, const uint8_t *at, struct rk_parquet_cell *cell)
{
    uint64_t bits;
    uint32_t low;
    float single;

    cell->at = at;
    cell->bytes = (size_t)width_of(leaf);
    if (leaf->type == RK_PARQUET_FIXED || leaf->type == RK_PARQUET_INT96)
        return;
    bits = rk_parquet_little(at, (int)cell->bytes);
    low = (uint32_t)bits;
    if (leaf->type == RK_PARQUET_INT32) {
        cell->integer = (int32_t)low;
    } else if (leaf->type == RK_PARQUET_INT64) {
        cell->integer = (int64_t)bits;
    } else if (leaf->type == RK_PARQUET_FLOAT) {
        memcpy(&single, &low, sizeof(single));
        cell->real = (double)single;
    } else {
        memcpy(&cell->real, &bits, sizeof(bits));
    }
}

static bool plain_next(struct rk_parquet_values *values, struct rk_parquet_cell *cell)
{
    struct rk_parquet_span *in = &values->in;
    const struct rk_parquet_node *leaf = values->leaf;
    size_t bytes;

    if (leaf->type == RK_PARQUET_BOOLEAN) {
        if (values->index / 8 >= left_of(in))
            return false;
        cell->integer = (in->at[values->index / 8] >> (values->index % 8)) & 1;
        return true;
    }
    if (leaf->type == RK_PARQUET_BYTE_ARRAY) {
        if (left_of(in) < 4)
            return false;
        bytes = (size_t)rk_parquet_little(in->at, 4);
        if (bytes > left_of(in) - 4)
            return false;
        cell->at = in->at + 4;
        cell->bytes = bytes;
        in->at += 4 + bytes;
        return true;
    }
    bytes = (size_t)width_of(leaf);
    if (left_of(in) < bytes)
        return false;
    set_fixed(leaf, in->at, cell);
    in->at += bytes;
    return true;
}

static bool split_next(struct rk_parquet_values *values, struct rk_parquet_cell *cell)
{
    size_t width = (size_t)width_of(values->leaf), count = left_of(&values->in) / width;

    if (values->index >= count)
        return false;
    rk_str_clear(&values->last);
    for (size_t i = 0; i < width; i++)
        rk_str_append_bytes(&values->last, (const char *)values->in.at + i * count + values->index, 1);
    set_fixed(values->leaf, (const uint8_t *)rk_str_text(&values->last), cell);
    return true;
}

static bool suffix_next(struct rk_parquet_values *values, struct rk_parquet_cell *cell)
{
    int64_t bytes;

    if (!deltas_next(&values->deltas, &bytes) || bytes < 0 || (uint64_t)bytes > left_of(&values->in))
        return false;
    cell->at = values->in.at;
    cell->bytes = (size_t)bytes;
    values->in.at += bytes;
    return true;
}

static bool delta_bytes_next(struct rk_parquet_values *values, struct rk_parquet_cell *cell)
{
    int64_t prefix;

    if (!deltas_next(&values->prefixes, &prefix) || !suffix_next(values, cell) || prefix < 0 ||
        (uint64_t)prefix > values->last.bytes)
        return false;
    values->last.bytes = (size_t)prefix;
    rk_str_append_bytes(&values->last, (const char *)cell->at, cell->bytes);
    cell->at = (const uint8_t *)rk_str_text(&values->last);
    cell->bytes = values->last.bytes;
    return values->leaf->type != RK_PARQUET_FIXED || cell->bytes == (size_t)values->leaf->type_bytes;
}

/* Whether values of the type may have the encoding. */
static bool is_known(const struct rk_parquet_node *leaf, int encoding)
{
    bool is_integer = leaf->type == RK_PARQUET_INT32 || leaf->type == RK_PARQUET_INT64;
    bool is_bytes = leaf->type == RK_PARQUET_BYTE_ARRAY;

    switch (encoding) {
    case RK_PARQUET_ENCODING_PLAIN:
    case RK_PARQUET_ENCODING_PLAIN_DICTIONARY:
    case RK_PARQUET_ENCODING_RLE_DICTIONARY:
        return true;
    case RK_PARQUET_ENCODING_RLE:
        return leaf->type == RK_PARQUET_BOOLEAN;
    case RK_PARQUET_ENCODING_DELTA:
        return is_integer;
    case RK_PARQUET_ENCODING_DELTA_LENGTH:
        return is_bytes;
    case RK_PARQUET_ENCODING_DELTA_BYTES:
        return is_bytes || leaf->type == RK_PARQUET_FIXED;
    case RK_PARQUET_ENCODING_SPLIT:
        return !is_bytes && leaf->type != RK_PARQUET_BOOLEAN;
    default:
        return false;
    }
}

static bool begin_values(struct rk_parquet_values *values)
{
    struct rk_parquet_span *in = &values->in;
    uint64_t bytes;

    if (rk_parquet_is_dictionary(values->encoding)) {
        if (left_of(in) == 0) /* all values are null */
            return true;
        if (*in->at > 32)
            return false;
        rk_parquet_runs_init(&values->runs, (struct rk_parquet_span){in->at + 1, in->end}, *in->at);
        return true;
    }
    switch (values->encoding) {
    case RK_PARQUET_ENCODING_RLE:
        if (left_of(in) < 4)
            return left_of(in) == 0;
        bytes = rk_parquet_little(in->at, 4);
        if (bytes > left_of(in) - 4)
            return false;
        rk_parquet_runs_init(&values->runs, (struct rk_parquet_span){in->at + 4, in->at + 4 + bytes}, 1);
        return true;
    case RK_PARQUET_ENCODING_DELTA:
        return deltas_init(&values->deltas, *in);
    case RK_PARQUET_ENCODING_DELTA_LENGTH:
        return split_deltas(&values->deltas, in);
    case RK_PARQUET_ENCODING_DELTA_BYTES:
        return split_deltas(&values->prefixes, in) && split_deltas(&values->deltas, in);
    default:
        return true;
    }
}

struct rk_status *rk_parquet_values_init(struct rk_parquet_values *values, const struct rk_parquet_node *leaf,
                                         int encoding, struct rk_parquet_span in)
{
    struct rk_str last = values->last;

    rk_str_clear(&last);
    *values = (struct rk_parquet_values){.encoding = encoding, .leaf = leaf, .in = in, .last = last};
    if (!is_known(leaf, encoding))
        return RK_FAIL(RK_UNIMPLEMENTED, "encoding %d of its values is not supported", encoding);
    return begin_values(values) ? NULL : RK_FAIL(RK_DATA_LOSS, "its values are damaged");
}

void rk_parquet_values_fini(struct rk_parquet_values *values)
{
    rk_str_fini(&values->last);
}

bool rk_parquet_values_next(struct rk_parquet_values *values, struct rk_parquet_cell *cell)
{
    bool is_ok;
    uint32_t value = 0;

    *cell = (struct rk_parquet_cell){0};
    switch (values->encoding) {
    case RK_PARQUET_ENCODING_PLAIN:
        is_ok = plain_next(values, cell);
        break;
    case RK_PARQUET_ENCODING_SPLIT:
        is_ok = split_next(values, cell);
        break;
    case RK_PARQUET_ENCODING_DELTA:
        is_ok = deltas_next(&values->deltas, &cell->integer);
        if (values->leaf->type == RK_PARQUET_INT32)
            cell->integer = (int32_t)(uint32_t)cell->integer;
        break;
    case RK_PARQUET_ENCODING_DELTA_LENGTH:
        is_ok = suffix_next(values, cell);
        break;
    case RK_PARQUET_ENCODING_DELTA_BYTES:
        is_ok = delta_bytes_next(values, cell);
        break;
    default:
        is_ok = rk_parquet_runs_next(&values->runs, &value);
        cell->integer = value;
    }
    values->index++;
    return is_ok;
}
