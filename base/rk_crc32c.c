#include "base/rk_crc32c.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/rk_file_io.h"

#define POLYNOMIAL 0x82f63b78u /* of RFC 3720, bits reflected */
#define READ_BYTES ((size_t)1 << 20)

/* table[k][b]: what byte b does to the checksum when k bytes follow it in the same word. */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void fill_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;

        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (int b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xff];
    }
}

uint32_t rk_crc32c_portable(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;

    pthread_once(&table_once, fill_table);
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        crc = table[7][crc & 0xff] ^ table[6][crc >> 8 & 0xff] ^ table[5][crc >> 16 & 0xff] ^
              table[4][crc >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^ table[0][p[7]];
    }
    for (; bytes > 0; bytes--, p++)
        crc = crc >> 8 ^ table[0][(crc ^ *p) & 0xff];
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const uint8_t *p, size_t bytes)
{
    uint64_t sum = ~crc;

    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;

        memcpy(&word, p, sizeof(word));
        sum = __builtin_ia32_crc32di(sum, word);
    }
    for (; bytes > 0; bytes--, p++)
        sum = __builtin_ia32_crc32qi((uint32_t)sum, *p);
    return ~(uint32_t)sum;
}

uint32_t rk_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    if (!__builtin_cpu_supports("sse4.2"))
        return rk_crc32c_portable(crc, data, bytes);
    return crc_sse42(crc, data, bytes);
}
#else
uint32_t rk_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return rk_crc32c_portable(crc, data, bytes);
}
#endif

/* Product of two polynomials modulo ours; bit 31 is the coefficient of x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

uint32_t rk_crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b)
{
    uint32_t shift = 1u << 31, square = 1u << 23; /* 1; x^8, one byte */

    for (; bytes_b > 0; bytes_b >>= 1) {
        if (bytes_b & 1)
            shift = multiply(shift, square);
        square = multiply(square, square);
    }
    return multiply(shift, crc_a) ^ crc_b;
}

static struct rk_status *sum_file(int fd, const char *path, uint32_t *crc, uint64_t *bytes)
{
    char *buf = rk_malloc(READ_BYTES);
    struct rk_status *st = NULL;
    ssize_t got = 1;

    *crc = 0;
    *bytes = 0;
    while (!st && got != 0) {
        got = read(fd, buf, READ_BYTES);
        if (got < 0 && errno != EINTR)
            st = rk_file_errno("reading", path);
        if (got > 0) {
            *crc = rk_crc32c(*crc, buf, (size_t)got);
            *bytes += (uint64_t)got;
        }
    }
    rk_free(buf);
    return st;
}

struct rk_status *rk_crc32c_of_file(uint32_t *crc, uint64_t *bytes, const char *path)
{
    struct rk_status *st;
    int fd;

    RK_TRY(rk_file_open_read(&fd, path));
    st = sum_file(fd, path, crc, bytes);
    close(fd);
    return st;
}

struct rk_status *rk_crc32c_of_range(uint32_t *crc, const char *path, uint64_t begin, uint64_t bytes)
{
    char *buf = rk_malloc(READ_BYTES);
    struct rk_status *st;
    int fd;

    *crc = 0;
    RK_TRY_GOTO(st, rk_file_open_read(&fd, path), out);
    for (uint64_t done = 0; !st && done < bytes; done += RK_MIN(READ_BYTES, bytes - done)) {
        size_t step = RK_MIN(READ_BYTES, bytes - done);

        st = rk_file_pread(fd, path, buf, step, begin + done);
        if (!st)
            *crc = rk_crc32c(*crc, buf, step);
    }
    close(fd);

out:
    rk_free(buf);
    return st;
}
