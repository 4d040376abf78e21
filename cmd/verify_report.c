/* The result of verify-layout, as tables and as JSON. */
#include "cmd/verify_layout_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "cmd/cmd_internal.h"

void rk_verify_report_fini(struct rk_verify_report *report)
{
    rk_verify_rows_fini(&report->rows);
    rk_str_fini(&report->advice);
    rk_free(report->layout);
    rk_free(report->reference);
}

static const char *verdict_of(const struct rk_verify_row *row)
{
    return row->agrees ? "agrees" : "DIFFERS";
}

static bool is_number(rk_verify_kind_t kind)
{
    return kind == RK_VERIFY_OUTPUT || kind == RK_VERIFY_METRIC;
}

/* --- tables --- */

static void print_numbers(const struct rk_verify_report *report)
{
    static const char *const titles[] = {"ROLE", "WHAT", "NAME", "DIFFERENCE", "NMSE", "VERDICT"};
    struct rk_table table;

    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int64_t i = 0; i < report->rows.items.count; i++) {
        const struct rk_verify_row *row = &report->rows.items.items[i];

        if (!is_number(row->kind))
            continue;
        rk_table_add(&table, row->role);
        rk_table_add(&table, rk_verify_kind_name(row->kind));
        rk_table_add(&table, row->name);
        rk_table_addf(&table, "%.2e", row->relative);
        rk_table_addf(&table, "%.2e", row->mean_square);
        rk_table_add(&table, verdict_of(row));
    }
    rk_table_print(&table, stdout);
}

/* NULL: the parameter is not trained. */
static const struct rk_verify_row *find_gradient(const struct rk_verify_rows *rows,
                                                 const struct rk_verify_row *parameter)
{
    for (int64_t i = 0; i < rows->items.count; i++) {
        const struct rk_verify_row *row = &rows->items.items[i];

        if (row->kind == RK_VERIFY_GRADIENT && row->role == parameter->role &&
            strcmp(row->name, parameter->name) == 0)
            return row;
    }
    return NULL;
}

static void add_numbers(struct rk_table *table, const struct rk_verify_row *row)
{
    if (!row) {
        rk_table_add(table, "-");
        rk_table_add(table, "-");
        return;
    }
    rk_table_addf(table, "%.2e", row->relative);
    rk_table_addf(table, "%.2e", row->mean_square);
}

static void print_tensors(const struct rk_verify_report *report)
{
    static const char *const titles[] = {"ROLE",       "PARAMETER", "GRADIENT", "NMSE",
                                         "AFTER STEP", "NMSE",      "VERDICT"};
    struct rk_table table;

    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int64_t i = 0; i < report->rows.items.count; i++) {
        const struct rk_verify_row *row = &report->rows.items.items[i];
        const struct rk_verify_row *gradient = find_gradient(&report->rows, row);

        if (row->kind != RK_VERIFY_PARAMETER)
            continue;
        rk_table_add(&table, row->role);
        rk_table_add(&table, row->name);
        add_numbers(&table, gradient);
        add_numbers(&table, row);
        rk_table_add(&table, verdict_of(gradient && !gradient->agrees ? gradient : row));
    }
    rk_table_print(&table, stdout);
}

static int64_t count_agreeing(const struct rk_verify_report *report)
{
    int64_t count = 0;

    for (int64_t i = 0; i < report->rows.items.count; i++)
        count += report->rows.items.items[i].agrees;
    return count;
}

void rk_verify_report_print(const struct rk_verify_report *report)
{
    const struct rk_verify_measure *measure = &report->measure;

    printf("%s: %s\nagainst: %s\n%" PRId64
           " sequences, one optimizer step, %s; a row agrees when its %s is at "
           "most %.2g\n\n",
           report->job, report->layout, report->reference, report->num_sequences, report->dtype,
           measure->by_mean_square ? "normalised mean square error (NMSE)"
                                   : "largest difference, relative to the largest number of the row,",
           measure->tolerance);
    print_numbers(report);
    printf("\n");
    print_tensors(report);
    printf("\n%" PRId64 " of %" PRId64 " rows agree\n", count_agreeing(report), report->rows.items.count);
}

/* --- JSON --- */

/* JSON has no infinities and no NaN; they are written as null. */
static struct rk_json *real_json(double value)
{
    return isfinite(value) ? rk_json_new_real(value) : rk_json_new_null();
}

static struct rk_json *row_json(const struct rk_verify_row *row)
{
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "role", rk_json_new_string(row->role));
    rk_json_set(object, "kind", rk_json_new_string(rk_verify_kind_name(row->kind)));
    rk_json_set(object, "name", rk_json_new_string(row->name));
    rk_json_set(object, "count", rk_json_new_int(row->difference.count));
    rk_json_set(object, "max_relative_difference", real_json(row->relative));
    rk_json_set(object, "nmse", real_json(row->mean_square));
    rk_json_set(object, "scale", real_json(row->scale));
    rk_json_set(object, "worst_element", rk_json_new_int(row->difference.worst));
    rk_json_set(object, "agrees", rk_json_new_bool(row->agrees));
    return object;
}

static struct rk_json *row_or_null(const struct rk_verify_row *row)
{
    return row ? row_json(row) : rk_json_new_null();
}

struct rk_json *rk_verify_report_json(const struct rk_verify_report *report)
{
    struct rk_json *object = rk_json_new_object(), *rows = rk_json_new_array();
    const struct rk_verify_row *first = rk_verify_first(&report->rows);

    for (int64_t i = 0; i < report->rows.items.count; i++)
        rk_json_append(rows, row_json(&report->rows.items.items[i]));
    rk_json_set(object, "job", rk_json_new_string(report->job));
    rk_json_set(object, "layout", rk_json_new_string(report->layout));
    rk_json_set(object, "reference", rk_json_new_string(report->reference));
    rk_json_set(object, "dtype", rk_json_new_string(report->dtype));
    rk_json_set(object, "num_sequences", rk_json_new_int(report->num_sequences));
    rk_json_set(object, "measure",
                rk_json_new_string(report->measure.by_mean_square ? "nmse" : "max_relative_difference"));
    rk_json_set(object, "tolerance", rk_json_new_real(report->measure.tolerance));
    rk_json_set(object, "agrees", rk_json_new_bool(!first));
    rk_json_set(object, "first", row_or_null(first));
    rk_json_set(object, "worst", row_or_null(rk_verify_worst(&report->rows, &report->measure)));
    rk_json_set(object, "cause", report->cause ? rk_json_new_string(report->cause) : rk_json_new_null());
    rk_json_set(object, "advice", rk_json_new_string(rk_str_text(&report->advice)));
    rk_json_set(object, "rows", rows);
    return object;
}

/* --- the verdict --- */

static void name_row(struct rk_str *out, const char *which, const struct rk_verify_row *row,
                     const struct rk_verify_measure *measure)
{
    rk_str_appendf(out, "%s: %s '%s' of role %s (%.2e)", which, rk_verify_kind_name(row->kind), row->name,
                   row->role, rk_verify_error(row, measure));
}

struct rk_status *rk_verify_report_verdict(const struct rk_verify_report *report)
{
    const struct rk_verify_row *first = rk_verify_first(&report->rows);
    const struct rk_verify_row *worst = rk_verify_worst(&report->rows, &report->measure);
    int64_t num_bad = report->rows.items.count - count_agreeing(report);
    struct rk_str text = {0};
    struct rk_status *st;

    if (!first)
        return NULL;
    name_row(&text, "first", first, &report->measure);
    rk_str_append(&text, "; ");
    name_row(&text, "worst", worst, &report->measure);
    st = RK_FAIL_REASON(RK_DATA_LOSS, "LAYOUTS_DIFFER",
                        "%s differs from %s: %" PRId64 " of %" PRId64 " rows differ; %s. %s%s%s",
                        report->layout, report->reference, num_bad, report->rows.items.count,
                        rk_str_text(&text), rk_str_text(&report->advice),
                        report->cause ? "Probable cause: " : "", report->cause ? report->cause : "");
    rk_str_fini(&text);
    return st;
}
