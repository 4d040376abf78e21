/* Output as tables or as JSON. */
#include "cmd/cmd_internal.h"

#include <stdarg.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_random.h"

void rk_cli_print_json(const char *kind, struct rk_json *body)
{
    struct rk_json *all = rk_json_new_object();
    char *text;

    rk_json_set(all, "apiVersion", rk_json_new_string(RK_CLI_API));
    rk_json_set(all, "kind", rk_json_new_string(kind));
    for (void *it = rk_json_iter(body); it; it = rk_json_iter_next(body, it))
        rk_json_set(all, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
    text = rk_json_dump(all, 2, false);
    printf("%s\n", text);
    rk_free(text);
    rk_json_free(all);
    rk_json_free(body);
}

struct rk_json *rk_cli_status_json(const struct rk_status *st)
{
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "code", rk_json_new_string(rk_code_name(rk_status_code(st))));
    rk_json_set(json, "reason", rk_json_new_string(rk_status_reason(st)));
    rk_json_set(json, "message", rk_json_new_string(rk_status_message(st)));
    return json;
}

struct rk_json *rk_cli_hex(const void *data, size_t bytes)
{
    char *text = rk_malloc(2 * bytes + 1);
    struct rk_json *json = rk_json_new_string(rk_hex(data, bytes, text));

    rk_free(text);
    return json;
}

char *rk_cli_printable(const char *text)
{
    return rk_str_printable(text, "\n");
}

void rk_table_init(struct rk_table *table, int num_columns, const char *const *titles)
{
    *table = (struct rk_table){.num_columns = num_columns};
    for (int i = 0; i < num_columns; i++)
        rk_table_add(table, titles[i]);
}

void rk_table_add(struct rk_table *table, const char *text)
{
    rk_array_append(&table->cells, rk_cli_printable(text && *text ? text : "-"));
}

void rk_table_addf(struct rk_table *table, const char *fmt, ...)
{
    struct rk_str text = {0};
    va_list args;

    va_start(args, fmt);
    rk_str_vappendf(&text, fmt, args);
    va_end(args);
    rk_table_add(table, rk_str_text(&text));
    rk_str_fini(&text);
}

static int width_of(const struct rk_table *table, int column)
{
    size_t width = 0;

    for (int64_t i = column; i < table->cells.count; i += table->num_columns)
        width = RK_MAX(width, strlen(table->cells.items[i]));
    return (int)width;
}

void rk_table_format(struct rk_table *table, struct rk_str *out)
{
    for (int64_t i = 0; i < table->cells.count; i++) {
        int column = (int)(i % table->num_columns);

        if (column + 1 < table->num_columns)
            rk_str_appendf(out, "%-*s  ", width_of(table, column), table->cells.items[i]);
        else
            rk_str_appendf(out, "%s\n", table->cells.items[i]);
    }
    for (int64_t i = 0; i < table->cells.count; i++)
        rk_free(table->cells.items[i]);
    rk_array_fini(&table->cells);
}

void rk_table_print(struct rk_table *table, FILE *out)
{
    struct rk_str text = {0};

    rk_table_format(table, &text);
    if (out)
        fputs(rk_str_text(&text), out);
    rk_str_fini(&text);
}
