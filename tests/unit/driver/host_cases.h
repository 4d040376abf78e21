/* The tables of tests/golden/hosts/cases.json. */
#ifndef RK_HOST_CASES_H
#define RK_HOST_CASES_H

#include "base/rk_json.h"
#include "base/rk_status.h"

/* The rows of a table, whose number is asserted. The caller frees them. */
struct rk_json *host_cases(const char *table, int64_t count);
/* A text of a row; NULL when the row has none. */
const char *host_case(const struct rk_json *row, const char *key);
rk_code_t host_case_code(const struct rk_json *row);

#endif
