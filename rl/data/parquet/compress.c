/* The libraries that expand pages. */
#include "rl/data/parquet/column_internal.h"

#include <string.h>

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>

#define GZIP_OR_ZLIB (MAX_WBITS + 32) /* the form is found in the data */

static bool expand_none(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    if (bytes != out_bytes)
        return false;
    memcpy(out, in, bytes);
    return true;
}

static bool expand_snappy(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    size_t count = out_bytes, expected;

    if (snappy_uncompressed_length((const char *)in, bytes, &expected) != SNAPPY_OK || expected != out_bytes)
        return false;
    return snappy_uncompress((const char *)in, bytes, (char *)out, &count) == SNAPPY_OK && count == out_bytes;
}

static bool expand_gzip(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    z_stream stream = {.next_in = (z_const Bytef *)(uintptr_t)in,
                       .avail_in = (uInt)bytes,
                       .next_out = out,
                       .avail_out = (uInt)out_bytes};
    int rc;

    if (inflateInit2(&stream, GZIP_OR_ZLIB) != Z_OK)
        return false;
    rc = inflate(&stream, Z_FINISH);
    inflateEnd(&stream);
    return rc == Z_STREAM_END && stream.total_out == out_bytes;
}

static bool expand_brotli(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    size_t count = out_bytes;

    return BrotliDecoderDecompress(bytes, in, &count, out) == BROTLI_DECODER_RESULT_SUCCESS &&
           count == out_bytes;
}

static bool expand_zstd(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    return ZSTD_decompress(out, out_bytes, in, bytes) == out_bytes;
}

static bool expand_lz4(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes)
{
    return LZ4_decompress_safe((const char *)in, (char *)out, (int)bytes, (int)out_bytes) == (int)out_bytes;
}

struct rk_status *rk_parquet_expand(int codec, const uint8_t *in, size_t bytes, uint8_t *out,
                                    size_t out_bytes)
{
    static const struct {
        const char *name;
        bool (*expand)(const uint8_t *in, size_t bytes, uint8_t *out, size_t out_bytes);
    } codecs[] = {
        {"none", expand_none},     {"SNAPPY", expand_snappy}, {"GZIP", expand_gzip}, {"LZO", NULL},
        {"BROTLI", expand_brotli}, {"LZ4 of Hadoop", NULL},   {"ZSTD", expand_zstd}, {"LZ4_RAW", expand_lz4},
    };

    if (codec < 0 || codec >= (int)RK_ARRAY_LEN(codecs) || !codecs[codec].expand)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "the compression %s (codec %d) is not supported; write the file with snappy or zstd",
                       codec >= 0 && codec < (int)RK_ARRAY_LEN(codecs) ? codecs[codec].name : "of the file",
                       codec);
    if (!codecs[codec].expand(in, bytes, out, out_bytes))
        return RK_FAIL(RK_DATA_LOSS, "a page is damaged: its %s data does not expand to %zu bytes",
                       codecs[codec].name, out_bytes);
    return NULL;
}

uint32_t rk_parquet_crc(const uint8_t *data, size_t bytes)
{
    return (uint32_t)crc32(0, data, (uInt)bytes);
}
