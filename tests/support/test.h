/* Common code of all cmocka tests: seed, temporary directory, status assertions, array comparison.
 *
 * Include this header instead of cmocka.h. It is for test binaries only, one thread at a time. */
#ifndef RK_TEST_H
#define RK_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rk_status.h"
#include "tests/support/tolerance.h"

RK_BEGIN_DECLS

/* RK_TEST_SEED or a fixed default; printed at the first call. */
uint64_t rk_test_seed(void);

/* RK_TEST_PART=i/n runs the i-th of n parts of a test's tables, for slow tools: returns whether the next case
 * is in the part. Call it once per case, in the same order in every run; without the variable it is always
 * true. Code outside of tables runs in every part. */
bool rk_test_in_part(void);
/* RK_TEST_QUICK=1, for the slowest of these tools: tests run fewer of the repetitions for statistics or to
 * fill a device, and fewer of the shapes that use the same kernels. */
bool rk_test_is_quick(void);

/* A new empty directory under TMPDIR, removed with its contents when the process exits normally. Borrowed.
 */
const char *rk_test_temp_dir(void);
/* Path of `name` in that directory; rk_free it. */
char *rk_test_temp_path(const char *name);
/* A new directory in that directory; rk_free it. */
char *rk_test_new_dir(void);
/* Path of a committed file, given relative to the tests folder ("golden/llama/config.json"); rk_free it. */
char *rk_test_fixture_path(const char *relative);

/* Whole file, terminated (the terminator is not counted); rk_free it. Fails the test if it cannot be read.
 */
char *rk_test_read_file(const char *path, size_t *bytes);
/* Entries of a directory, "." and ".." left out. Ends the process if it cannot be read, so that ranks may
 * call it. */
int rk_test_count_entries(const char *path);
void rk_test_write_file(const char *path, const void *data, size_t bytes);

/* What cannot run here says so in a line "skipped: REASON"; scripts/test.sh shows and counts these lines. */
#define RK_TEST_EXIT_SKIPPED 77 /* ctest treats a program that exits so as skipped */

/* Ends the test. */
#define rk_test_skip(...) rk_test_skip_at(__FILE__, __LINE__, __VA_ARGS__)
void rk_test_skip_at(const char *file, int line, const char *format, ...) RK_PRINTF(3, 4);
/* A row of a table, or another part of a test that continues. */
void rk_test_skip_part(const char *format, ...) RK_PRINTF(1, 2);
/* Ends the process. */
void rk_test_skip_program(const char *format, ...) RK_PRINTF(1, 2) RK_NORETURN;

/* max |a - b| / max(|b|, floor): relative, but absolute below `floor`. +inf when an element is not finite on
 * one side only or differs as infinity. */
double rk_test_max_rel_error_f32(const float *actual, const float *expected, int64_t count, double floor);
double rk_test_max_rel_error_f64(const double *actual, const double *expected, int64_t count, double floor);
/* Normalised mean squared error: sum((a - b)^2) / sum(b^2); the plain sum when all of b is 0. */
double rk_test_nmse_f32(const float *actual, const float *expected, int64_t count);
double rk_test_nmse_f64(const double *actual, const double *expected, int64_t count);

/* Each takes the status and frees it; on failure they print code, message and frames first. */
#define assert_ok(expr) rk_test_assert_ok((expr), #expr, __FILE__, __LINE__)
#define assert_code(expr, expected_code) \
    rk_test_assert_code((expr), (expected_code), NULL, #expr, __FILE__, __LINE__)
#define assert_message_contains(expr, text) rk_test_assert_message((expr), (text), #expr, __FILE__, __LINE__)
/* Code and a part of the message in one. */
#define assert_fails(expr, expected_code, text) \
    rk_test_assert_code((expr), (expected_code), (text), #expr, __FILE__, __LINE__)
/* value <= bound; prints both with the label of the case. */
#define assert_below(label, value, bound) \
    rk_test_assert_below((label), (value), (bound), #value, __FILE__, __LINE__)

void rk_test_assert_ok(struct rk_status *st, const char *expr, const char *file, int line);
void rk_test_assert_code(struct rk_status *st, rk_code_t code, const char *text, const char *expr,
                         const char *file, int line);
void rk_test_assert_message(struct rk_status *st, const char *text, const char *expr, const char *file,
                            int line);
void rk_test_assert_below(const char *label, double value, double bound, const char *expr, const char *file,
                          int line);

RK_END_DECLS

#endif
