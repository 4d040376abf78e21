#include "tests/unit/driver/host_cases.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

struct rk_json *host_cases(const char *table, int64_t count)
{
    char *path = rk_test_fixture_path("golden/hosts/cases.json");
    struct rk_json *all = NULL, *rows;

    assert_ok(rk_json_parse_file(&all, path, 1 << 20, 0));
    rows = rk_json_retain(rk_json_find(all, table));
    assert_int_equal(rk_json_count(rows), count);
    rk_json_free(all);
    rk_free(path);
    return rows;
}

const char *host_case(const struct rk_json *row, const char *key)
{
    return rk_json_as_string(rk_json_find(row, key), NULL);
}

rk_code_t host_case_code(const struct rk_json *row)
{
    for (rk_code_t code = RK_OK; code <= RK_UNAUTHENTICATED; code++) {
        if (strcmp(rk_code_name(code), host_case(row, "code")) == 0)
            return code;
    }
    fail_msg("no code '%s'", host_case(row, "code"));
    return RK_OK;
}
