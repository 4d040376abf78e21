#include "tests/support/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"

#define DEFAULT_SEED 20240229

static char *temp_dir;
static pid_t temp_dir_owner;

uint64_t rk_test_seed(void)
{
    static bool is_printed;
    const char *text = rk_env("RK_TEST_SEED");
    int64_t seed = DEFAULT_SEED;

    if (text)
        RK_ASSERT(rk_parse_i64(text, &seed));
    if (!is_printed)
        printf("seed %" PRId64 " (RK_TEST_SEED replays)\n", seed);
    is_printed = true;
    return (uint64_t)seed;
}

/* "2/5"; 1/1 if the variable is unset. */
static void read_part(int64_t *part, int64_t *num_parts)
{
    const char *text = rk_env("RK_TEST_PART");
    char *copy = rk_strdup(text ? text : "1/1"), *slash = strchr(copy, '/');

    RK_ASSERT(slash);
    *slash = '\0';
    RK_ASSERT(rk_parse_i64(copy, part) && rk_parse_i64(slash + 1, num_parts));
    RK_ASSERT(*part >= 1 && *part <= *num_parts);
    rk_free(copy);
}

bool rk_test_in_part(void)
{
    static int64_t part, num_parts, num_asked;

    if (num_parts == 0)
        read_part(&part, &num_parts);
    return num_asked++ % num_parts == part - 1;
}

bool rk_test_is_quick(void)
{
    const char *text = rk_env("RK_TEST_QUICK");

    return text && strcmp(text, "1") == 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void remove_temp_dir(void)
{
    /* A forked child that exits must not remove the parent's directory. */
    if (getpid() == temp_dir_owner)
        nftw(temp_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    rk_free(temp_dir);
}

const char *rk_test_temp_dir(void)
{
    const char *root = rk_env("TMPDIR");

    if (temp_dir)
        return temp_dir;
    temp_dir = rk_path_join(root ? root : "/tmp", "rankd-test-XXXXXX");
    RK_ASSERT(mkdtemp(temp_dir) != NULL);
    temp_dir_owner = getpid();
    RK_ASSERT(atexit(remove_temp_dir) == 0);
    return temp_dir;
}

char *rk_test_temp_path(const char *name)
{
    return rk_path_join(rk_test_temp_dir(), name);
}

char *rk_test_new_dir(void)
{
    static int count;
    char name[32];
    char *path;

    snprintf(name, sizeof(name), "dir%d", count++);
    path = rk_test_temp_path(name);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

char *rk_test_fixture_path(const char *relative)
{
    return rk_path_join(RK_TEST_SOURCE_DIR "/tests", relative);
}

char *rk_test_read_file(const char *path, size_t *bytes)
{
    struct rk_str text = {0};
    char buf[4096];
    size_t got;
    FILE *file = fopen(path, "rb");

    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    rk_str_append(&text, "");
    while ((got = fread(buf, 1, sizeof(buf), file)) > 0)
        rk_str_append_bytes(&text, buf, got);
    fclose(file);
    if (bytes)
        *bytes = text.bytes;
    return rk_str_take(&text);
}

int rk_test_count_entries(const char *path)
{
    DIR *dir = opendir(path);
    int count = -2; /* "." and ".." */

    RK_ASSERT(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

void rk_test_write_file(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    if (!file)
        fail_msg("%s: %s", path, strerror(errno));
    assert_int_equal(bytes ? fwrite(data, 1, bytes, file) : 0, bytes);
    assert_int_equal(fclose(file), 0);
}

static void print_skipped(const char *format, va_list args)
{
    struct rk_str reason = {0};

    rk_str_vappendf(&reason, format, args);
    print_message("skipped: %s\n", rk_str_text(&reason));
    rk_str_fini(&reason);
}

void rk_test_skip_at(const char *file, int line, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_skipped(format, args);
    va_end(args);
    _skip(file, line);
}

void rk_test_skip_part(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_skipped(format, args);
    va_end(args);
}

void rk_test_skip_program(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_skipped(format, args);
    va_end(args);
    exit(RK_TEST_EXIT_SKIPPED);
}

static double rel_error(double actual, double expected, double floor)
{
    if (!isfinite(actual) || !isfinite(expected))
        return actual == expected || (isnan(actual) && isnan(expected)) ? 0.0 : INFINITY;
    return fabs(actual - expected) / fmax(fabs(expected), floor);
}

double rk_test_max_rel_error_f32(const float *actual, const float *expected, int64_t count, double floor)
{
    double worst = 0.0;

    for (int64_t i = 0; i < count; i++)
        worst = fmax(worst, rel_error((double)actual[i], (double)expected[i], floor));
    return worst;
}

double rk_test_max_rel_error_f64(const double *actual, const double *expected, int64_t count, double floor)
{
    double worst = 0.0;

    for (int64_t i = 0; i < count; i++)
        worst = fmax(worst, rel_error(actual[i], expected[i], floor));
    return worst;
}

static double nmse(double sum_error, double sum_expected)
{
    return sum_expected > 0.0 ? sum_error / sum_expected : sum_error;
}

double rk_test_nmse_f32(const float *actual, const float *expected, int64_t count)
{
    double sum_error = 0.0, sum_expected = 0.0;

    for (int64_t i = 0; i < count; i++) {
        double error = (double)actual[i] - (double)expected[i];

        sum_error += error * error;
        sum_expected += (double)expected[i] * (double)expected[i];
    }
    return nmse(sum_error, sum_expected);
}

double rk_test_nmse_f64(const double *actual, const double *expected, int64_t count)
{
    double sum_error = 0.0, sum_expected = 0.0;

    for (int64_t i = 0; i < count; i++) {
        sum_error += (actual[i] - expected[i]) * (actual[i] - expected[i]);
        sum_expected += expected[i] * expected[i];
    }
    return nmse(sum_error, sum_expected);
}

/* Prints, frees and fails the test at the caller's line. */
static void fail_with(struct rk_status *st, const char *wanted, const char *expr, const char *file, int line)
{
    char frames[4096];

    rk_status_format_frames(st, frames, sizeof(frames));
    print_error("%s\n  expected %s\n  got %s: %s\n%s\n", expr, wanted, rk_code_name(rk_status_code(st)),
                rk_status_message(st), frames);
    rk_status_free(st);
    _fail(file, line);
}

void rk_test_assert_ok(struct rk_status *st, const char *expr, const char *file, int line)
{
    if (st)
        fail_with(st, "OK", expr, file, line);
}

void rk_test_assert_code(struct rk_status *st, rk_code_t code, const char *text, const char *expr,
                         const char *file, int line)
{
    char wanted[512];

    snprintf(wanted, sizeof(wanted), "%s%s%s", rk_code_name(code), text ? " with: " : "", text ? text : "");
    if (rk_status_code(st) != code || (text && !strstr(rk_status_message(st), text)))
        fail_with(st, wanted, expr, file, line);
    rk_status_free(st);
}

void rk_test_assert_message(struct rk_status *st, const char *text, const char *expr, const char *file,
                            int line)
{
    if (!st || !strstr(rk_status_message(st), text))
        fail_with(st, text, expr, file, line);
    rk_status_free(st);
}

void rk_test_assert_below(const char *label, double value, double bound, const char *expr, const char *file,
                          int line)
{
    if (value <= bound)
        return;
    print_error("%s: %s = %g, over the bound %g\n", label, expr, value, bound);
    _fail(file, line);
}
