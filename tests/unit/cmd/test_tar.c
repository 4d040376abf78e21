#include "base/format/rk_tar.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define BLOCK 512

struct member {
    const char *name;
    size_t bytes;
};

static const struct member members[] = {
    {"dir/empty", 0}, {"dir/one", 1}, {"dir/block", BLOCK}, {"dir/more", BLOCK + 1}, {"large", 100000}};

static char byte_at(size_t i)
{
    return (char)('a' + i % 23);
}

static char *content(size_t bytes)
{
    char *data = rk_malloc(bytes + 1);

    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_at(i);
    return data;
}

static char *write_sample(void)
{
    char *path = rk_test_temp_path("sample.tar");
    struct rk_tar *tar;

    unlink(path);
    assert_ok(rk_tar_create(&tar, path));
    for (size_t i = 0; i < RK_ARRAY_LEN(members); i++) {
        char *data = content(members[i].bytes);

        assert_ok(rk_tar_add(tar, members[i].name, data, members[i].bytes, 1234567890));
        rk_free(data);
    }
    assert_ok(rk_tar_finish(tar, NULL));
    return path;
}

/* Goal: the file conforms to the POSIX table: names, octal sizes and times, checksums, blocks. */
static void test_tar_is_ustar(void **state)
{
    char *path = write_sample(), *data;
    struct stat info;
    size_t bytes, at = 0;

    (void)state;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    data = rk_test_read_file(path, &bytes);
    assert_int_equal(bytes % (20 * BLOCK), 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(members); i++) {
        const char *header = data + at;
        unsigned sum = 0;

        for (size_t j = 0; j < BLOCK; j++)
            sum += j >= 148 && j < 156 ? ' ' : (unsigned char)header[j];
        assert_string_equal(header, members[i].name);
        assert_int_equal(strtoul(header + 100, NULL, 8), 0600);
        assert_int_equal(strtoul(header + 124, NULL, 8), members[i].bytes);
        assert_int_equal(strtoul(header + 136, NULL, 8), 1234567890);
        assert_int_equal(strtoul(header + 148, NULL, 8), sum);
        assert_int_equal(header[156], '0');
        assert_memory_equal(header + 257,
                            "ustar\0"
                            "00",
                            8);
        at += BLOCK;
        for (size_t j = 0; j < members[i].bytes; j++)
            assert_int_equal(data[at + j], byte_at(j));
        at += (members[i].bytes + BLOCK - 1) / BLOCK * BLOCK;
    }
    assert_true(bytes - at >= 2 * BLOCK);
    for (; at < bytes; at++)
        assert_int_equal(data[at], 0);
    rk_free(data);
    rk_free(path);
}

/* Goal: the system's tar extracts the files. */
static void test_tar_is_read_by_tar(void **state)
{
    char *path = write_sample(), *command = rk_format("tar -xf %s -C %s", path, rk_test_temp_dir());
    char *large = rk_test_temp_path("large"), *data, *expected = content(100000);
    size_t bytes;

    (void)state;
    assert_int_equal(system(command), 0); // NOLINT: fixed words and a path of this test
    data = rk_test_read_file(large, &bytes);
    assert_int_equal(bytes, 100000);
    assert_memory_equal(data, expected, bytes);
    rk_free(data);
    rk_free(expected);
    rk_free(large);
    rk_free(command);
    rk_free(path);
}

/* Goal: an existing file is not changed, and an incomplete file is removed. */
static void test_tar_refuses_and_removes(void **state)
{
    char *path = write_sample(), *other = rk_test_temp_path("failed.tar");
    struct rk_tar *tar;

    (void)state;
    assert_fails(rk_tar_create(&tar, path), RK_ALREADY_EXISTS, "exists already");
    assert_null(tar);
    assert_fails(rk_tar_create(&tar, "/does/not/exist.tar"), RK_NOT_FOUND, "/does/not/exist.tar");
    assert_ok(rk_tar_create(&tar, other));
    assert_fails(rk_tar_finish(tar, RK_FAIL(RK_INTERNAL, "no more")), RK_INTERNAL, "no more");
    assert_int_equal(access(other, F_OK), -1);
    rk_free(other);
    rk_free(path);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tar_is_ustar),
        cmocka_unit_test(test_tar_is_read_by_tar),
        cmocka_unit_test(test_tar_refuses_and_removes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
