/* The resolved tree against the key table. */
#include "base/config/rk_config_internal.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"

/* --- unknown keys --- */

/* Names that the table has in one section. */
struct siblings {
    RK_ARRAY(char *) names;
};

static void add_sibling(struct siblings *siblings, const char *path, const char *parent)
{
    size_t parent_bytes = strlen(parent);
    bool is_below =
        parent_bytes == 0 || (strncmp(path, parent, parent_bytes) == 0 && path[parent_bytes] == '.');
    const char *name = is_below ? path + (parent_bytes ? parent_bytes + 1 : 0) : "";

    if (*name && !strchr(name, '.'))
        rk_array_append(&siblings->names, rk_strdup(name));
}

/* A row with a pattern is a row wherever the pattern matches. */
static void add_foreign_sibling(struct siblings *siblings, const char *path, const char *parent)
{
    const char *dot = strrchr(path, '.'), *name = dot ? dot + 1 : path;
    char *pattern = rk_strndup(path, dot ? (size_t)(dot - path) : 0);

    if (!strchr(name, '*') && fnmatch(pattern, parent, 0) == 0)
        rk_array_append(&siblings->names, rk_strdup(name));
    rk_free(pattern);
}

static void add_siblings(struct siblings *siblings, const struct rk_config_loader *loader, const char *parent)
{
    const struct rk_map *const maps[] = {loader->rows, loader->sections};

    for (size_t m = 0; m < RK_ARRAY_LEN(maps); m++) {
        for (int64_t i = 0; i < rk_map_count(maps[m]); i++)
            add_sibling(siblings, rk_map_key_at(maps[m], i), parent);
    }
    for (int64_t i = 0; i < loader->source->num_foreign; i++)
        add_foreign_sibling(siblings, loader->source->foreign[i].path, parent);
}

/* The one path of the table that ends in ".name", NULL when there are none or several. */
static const char *find_elsewhere(const struct rk_config_loader *loader, const char *name)
{
    char *suffix = rk_format(".%s", name);
    const char *found = NULL;
    int count = 0;

    for (int64_t i = 0; i < loader->source->num_keys; i++) {
        const char *path = loader->source->keys[i].path;

        if (rk_str_has_suffix(path, suffix) || strcmp(path, name) == 0) {
            found = path;
            count++;
        }
    }
    rk_free(suffix);
    return count == 1 ? found : NULL;
}

static void report_unknown(struct rk_config_loader *loader, const char *parent, const char *name,
                           const char *path)
{
    const struct rk_config_place *place;
    struct siblings siblings = {0};
    char *renamed = rk_config_find_renamed(loader->source, parent);
    const char *suggestion;

    rk_config_place_section(loader, path);
    place = rk_config_find_place(loader, path);
    add_siblings(&siblings, loader, parent);
    if (renamed)
        add_siblings(&siblings, loader, renamed);
    suggestion = rk_str_suggest(name, (const char *const *)siblings.names.items, siblings.names.count);
    if (!suggestion)
        suggestion = find_elsewhere(loader, name);
    if (strchr(name, '.'))
        rk_config_problem(loader, place, path,
                          "unknown key; parts joined by dots are written as nested objects");
    else if (suggestion)
        rk_config_problem(loader, place, path, "unknown key; did you mean '%s'?", suggestion);
    else
        rk_config_problem(loader, place, path, "unknown key");
    for (int64_t i = 0; i < siblings.names.count; i++)
        rk_free(siblings.names.items[i]);
    rk_array_fini(&siblings.names);
    rk_free(renamed);
}

/* --- values --- */

static bool is_chosen(const char *choices, const char *text)
{
    size_t bytes = strlen(text);

    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        if (strcspn(p, "|") == bytes && strncmp(p, text, bytes) == 0)
            return true;
    }
    return false;
}

/* The value as a number for the range check; false when it is not of the row's type. */
static bool read_number(const struct rk_config_key *row, const struct rk_json *value, double *out)
{
    const char *text = rk_json_as_string(value, "");
    int64_t integer = 0;
    bool is_right;

    switch (row->type) {
    case RK_CONFIG_INT:
        is_right = rk_json_as_int(value, 0) == rk_json_as_int(value, 1);
        integer = rk_json_as_int(value, 0);
        break;
    case RK_CONFIG_BYTES:
        is_right = rk_parse_bytes(text, &integer);
        break;
    case RK_CONFIG_DURATION:
        is_right = rk_parse_duration_ms(text, &integer);
        break;
    default:
        *out = rk_json_as_real(value, NAN);
        return !isnan(*out);
    }
    *out = (double)integer;
    return is_right;
}

static const char *expectation(const struct rk_config_key *row)
{
    static const char *const texts[] = {
        [RK_CONFIG_BOOL] = "true or false",
        [RK_CONFIG_INT] = "an integer",
        [RK_CONFIG_REAL] = "a number",
        [RK_CONFIG_STRING] = "a string",
        [RK_CONFIG_BYTES] = "a size with a unit (\"512MiB\"; B, KiB, MiB, GiB, TiB)",
        [RK_CONFIG_DURATION] = "a duration with a unit (\"30s\"; ms, s, min, h)",
        [RK_CONFIG_LIST] = "an array",
        [RK_CONFIG_OPEN] = "an object",
    };

    return row->flags & RK_CONFIG_NUMBER_AS_TEXT ? "a number or a string" : texts[row->type];
}

static bool has_type(const struct rk_config_key *row, const struct rk_json *value)
{
    double number;

    switch (row->type) {
    case RK_CONFIG_BOOL:
        return rk_json_type(value) == RK_JSON_BOOL;
    case RK_CONFIG_STRING:
        return rk_json_type(value) == RK_JSON_STRING;
    case RK_CONFIG_LIST:
        return rk_json_type(value) == RK_JSON_ARRAY;
    case RK_CONFIG_OPEN:
        return rk_json_type(value) == RK_JSON_OBJECT;
    default:
        return read_number(row, value, &number);
    }
}

static bool is_numeric(const struct rk_config_key *row)
{
    return row->type == RK_CONFIG_INT || row->type == RK_CONFIG_REAL || row->type == RK_CONFIG_BYTES ||
           row->type == RK_CONFIG_DURATION;
}

/* A limit in the form used in files: "4MiB", "168h", "0.5". */
static void append_limit(struct rk_str *out, const struct rk_config_key *row, double limit)
{
    static const struct {
        rk_config_type_t type;
        double factor;
        const char *unit;
    } units[] = {
        {RK_CONFIG_BYTES, 0x1p40, "TiB"},     {RK_CONFIG_BYTES, 0x1p30, "GiB"},
        {RK_CONFIG_BYTES, 0x1p20, "MiB"},     {RK_CONFIG_BYTES, 0x1p10, "KiB"},
        {RK_CONFIG_BYTES, 1.0, "B"},          {RK_CONFIG_DURATION, 3600000.0, "h"},
        {RK_CONFIG_DURATION, 60000.0, "min"}, {RK_CONFIG_DURATION, 1000.0, "s"},
        {RK_CONFIG_DURATION, 1.0, "ms"},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(units); i++) {
        if (row->type == units[i].type && limit >= units[i].factor && fmod(limit, units[i].factor) == 0.0) {
            rk_str_appendf(out, "%.15g%s", limit / units[i].factor, units[i].unit);
            return;
        }
    }
    rk_str_appendf(out, "%.15g", limit);
}

/* The expectation of the range that the value violates, or NULL. */
static char *range_problem(const struct rk_config_key *row, const struct rk_json *value, const char *text)
{
    bool is_above = (row->flags & RK_CONFIG_ABOVE_MIN) != 0;
    struct rk_str problem = {0};
    double number = 0.0;

    (void)read_number(row, value, &number);
    if (number <= row->max && (number > row->min || (number == row->min && !is_above)))
        return NULL;
    rk_str_append(&problem, is_above ? "expected above " : "expected ");
    append_limit(&problem, row, row->min);
    rk_str_append(&problem, is_above ? ", at most " : " to ");
    append_limit(&problem, row, row->max);
    rk_str_appendf(&problem, ", got %s", text);
    return rk_str_take(&problem);
}

char *rk_config_find_problem(const struct rk_config_key *row, const struct rk_json *value)
{
    bool is_nullable = (row->flags & RK_CONFIG_NULLABLE) != 0;
    char *text, *problem = NULL;

    if (!value || rk_json_is_null(value))
        return is_nullable ? NULL : rk_format("expected %s, got null", expectation(row));
    text = rk_json_describe(value);
    if (!has_type(row, value))
        problem = rk_format("expected %s%s, got %s", expectation(row), is_nullable ? " or null" : "", text);
    else if (row->choices && !is_chosen(row->choices, rk_json_as_string(value, "")))
        problem = rk_format("expected one of %s, got %s", row->choices, text);
    else if (is_numeric(row) && (row->min != 0 || row->max != 0))
        problem = range_problem(row, value, text);
    rk_free(text);
    return problem;
}

static void check_value(struct rk_config_loader *loader, const struct rk_config_key *row,
                        const struct rk_json *value)
{
    char *problem = rk_config_find_problem(row, value);

    if (problem)
        rk_config_problem(loader, rk_config_find_place(loader, row->path), row->path, "%s", problem);
    rk_free(problem);
}

/* --- the tree --- */

/* A section of the table, or of foreign rows: then its remaining members are unknown, and not the section. */
static bool is_section(const struct rk_config_loader *loader, const char *path, const struct rk_json *value)
{
    return rk_map_find(loader->sections, path) ||
           (rk_json_count(value) > 0 && rk_config_is_foreign_section(loader->source, path));
}

static void check_section(struct rk_config_loader *loader, const struct rk_json *section, const char *path)
{
    for (void *it = rk_json_iter(section); it; it = rk_json_iter_next(section, it)) {
        const char *name = rk_json_iter_key(it);
        const struct rk_json *value = rk_json_iter_value(it);
        char *member_path = rk_json_join_path(path, name);
        const struct rk_config_key *row = rk_map_find(loader->rows, member_path);

        /* A dotted name would name a row of another section. */
        if (strchr(name, '.') || (!row && !is_section(loader, member_path, value)))
            report_unknown(loader, path, name, member_path);
        else if (row && !rk_config_is_ref(value)) /* a remaining one has been reported */
            check_value(loader, row, value);
        else if (rk_json_type(value) == RK_JSON_OBJECT)
            check_section(loader, value, member_path);
        else if (!rk_config_is_ref(value))
            rk_config_problem(loader, rk_config_find_place(loader, member_path), member_path,
                              "expected an object, got %s", rk_json_type_name(rk_json_type(value)));
        rk_free(member_path);
    }
}

static bool is_number(const struct rk_json *value)
{
    return rk_json_type(value) == RK_JSON_INT || rk_json_type(value) == RK_JSON_REAL;
}

/* The list, or text, for which the value is a short form; NULL when it is not one. */
static struct rk_json *meant_by(const struct rk_config_key *row, const struct rk_json *value)
{
    const char *given = rk_config_is_ref(value) ? "" : rk_json_as_string(value, "");
    struct rk_json *meant = NULL;
    char *text;

    if (row->type == RK_CONFIG_LIST && *given == '[') {
        /* A list that was quoted once too often, as in some of verl's scripts. */
        struct rk_status *st = rk_json_parse(&meant, given, strlen(given), "list", 0);

        RK_IGNORE(st, "text that is not a list");
    }
    if (!meant && *given && (row->flags & RK_CONFIG_ONE_OR_LIST)) {
        meant = rk_json_new_array();
        rk_json_append(meant, rk_json_retain(value));
    }
    if ((row->flags & RK_CONFIG_NUMBER_AS_TEXT) && is_number(value)) {
        text = rk_json_dump(value, 0, false);
        meant = rk_json_new_string(text);
        rk_free(text);
    }
    return meant;
}

static void replace_short_forms(struct rk_config_loader *loader)
{
    for (int64_t i = 0; i < loader->source->num_keys; i++) {
        const struct rk_config_key *row = &loader->source->keys[i];
        struct rk_json *meant = meant_by(row, rk_json_find_path(loader->tree, row->path));

        if (meant)
            rk_json_set_path(loader->tree, row->path, meant);
    }
}

void rk_config_check(struct rk_config_loader *loader)
{
    replace_short_forms(loader);
    check_section(loader, loader->tree, "");
    for (int64_t i = 0; i < loader->source->num_keys && !loader->is_partial; i++) {
        const struct rk_config_key *row = &loader->source->keys[i];

        if ((row->flags & RK_CONFIG_REQUIRED) && !rk_json_find_path(loader->tree, row->path))
            rk_config_problem(loader, NULL, row->path, "required, but not set (%s)", row->help);
    }
}
