/* The method table: rows of the .def files as constant arrays, and the checks that derive from them. */
#include "proto/rk_methods.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "proto/columns.def"
#include "proto/options.def"

#include <inttypes.h>
#include <string.h>

/* Sets in the order of their rows: the rows of a set are one run of the table, which begins after the rows of
 * all sets before it. Counting rows gives constant expressions, so that the tables need no initialisation. */
#define COLUMN_SET(set) COLUMNS_##set,
#define OPTION_SET(set) OPTIONS_##set,
enum column_set { COLUMNS_none, RK_COLUMN_SETS(COLUMN_SET) };
enum option_set { OPTIONS_none, RK_OPTION_SETS(OPTION_SET) };
#undef COLUMN_SET
#undef OPTION_SET

static const struct rk_column_schema columns[] = {
#define X(arg, set, name, dtype, dims, is_required, doc) {name, RK_DTYPE_##dtype, dims, is_required, doc},
    RK_COLUMN_TABLE(X, unused)
#undef X
};

static const struct rk_option_schema options[] = {
#define X(arg, set, key, type, default_text, doc) {key, RK_OPTION_##type, default_text, doc},
    RK_OPTION_TABLE(X, unused)
#undef X
};

#define COLUMN_BEFORE(arg, set, ...) +(COLUMNS_##set < COLUMNS_##arg)
#define COLUMN_IN(arg, set, ...)     +(COLUMNS_##set == COLUMNS_##arg)
#define OPTION_BEFORE(arg, set, ...) +(OPTIONS_##set < OPTIONS_##arg)
#define OPTION_IN(arg, set, ...)     +(OPTIONS_##set == OPTIONS_##arg)

static const struct rk_method methods[RK_METHOD_COUNT] = {
#define X(id_, name_, roles_, mode_, mesh_, exec_, flags_, in_, out_, options_, doc_) \
    [RK_METHOD_##id_] = {                                                             \
        .id = RK_METHOD_##id_,                                                        \
        .name = #name_,                                                               \
        .roles = (roles_),                                                            \
        .dispatch_mode = (mode_),                                                     \
        .dispatch_mesh = (mesh_),                                                     \
        .execute_mode = #exec_,                                                       \
        .flags = (flags_),                                                            \
        .doc = (doc_),                                                                \
        .in = &columns[0 RK_COLUMN_TABLE(COLUMN_BEFORE, in_)],                        \
        .out = &columns[0 RK_COLUMN_TABLE(COLUMN_BEFORE, out_)],                      \
        .num_in = 0 RK_COLUMN_TABLE(COLUMN_IN, in_),                                  \
        .num_out = 0 RK_COLUMN_TABLE(COLUMN_IN, out_),                                \
        .options = &options[0 RK_OPTION_TABLE(OPTION_BEFORE, options_)],              \
        .num_options = 0 RK_OPTION_TABLE(OPTION_IN, options_),                        \
    },
    RK_METHOD_TABLE(X)
#undef X
};

static const struct {
    const char *name;
    uint32_t bit;
} roles[] = {
    {"actor", RK_ROLE_ACTOR},         {"rollout", RK_ROLE_ROLLOUT},     {"ref", RK_ROLE_REF},
    {"critic", RK_ROLE_CRITIC},       {"reward", RK_ROLE_REWARD},       {"teacher", RK_ROLE_TEACHER},
    {"teacher_2", RK_ROLE_TEACHER_2}, {"teacher_3", RK_ROLE_TEACHER_3}, {"teacher_4", RK_ROLE_TEACHER_4},
};

uint32_t rk_role_parse(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        if (strcmp(roles[i].name, name) == 0)
            return roles[i].bit;
    }
    return 0;
}

const char *rk_role_name(uint32_t role_bit)
{
    size_t i = 0;

    while (i < RK_ARRAY_LEN(roles) && roles[i].bit != role_bit)
        i++;
    RK_ASSERT(i < RK_ARRAY_LEN(roles));
    return roles[i].name;
}

const struct rk_method *rk_method_get(rk_method_id_t id)
{
    RK_ASSERT((int)id >= 0);
    RK_ASSERT(id < RK_METHOD_COUNT);
    return &methods[id];
}

const struct rk_method *rk_method_find(const char *name)
{
    for (size_t i = 0; i < RK_METHOD_COUNT; i++) {
        if (strcmp(methods[i].name, name) == 0)
            return &methods[i];
    }
    return NULL;
}

struct rk_method_meshes rk_method_get_meshes(const struct rk_method *method, const char *role)
{
    const char *text = method->dispatch_mesh[0] ? method->dispatch_mesh : role;
    struct rk_method_meshes meshes = {0};

    for (;;) {
        size_t bytes = strcspn(text, "+");

        RK_ASSERT(meshes.count < RK_METHOD_MESHES_MAX);
        RK_ASSERT(bytes > 0 && bytes < sizeof(meshes.role[0]));
        memcpy(meshes.role[meshes.count++], text, bytes);
        if (!text[bytes])
            return meshes;
        text += bytes + 1;
    }
}

/* "a, b, c" of the roles in the mask; rk_free it. */
static char *role_list(uint32_t mask)
{
    struct rk_str list = {0};

    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        if (mask & roles[i].bit)
            rk_str_appendf(&list, "%s%s", list.bytes ? ", " : "", roles[i].name);
    }
    return rk_str_take(&list);
}

static char *method_list(void)
{
    struct rk_str list = {0};

    for (size_t i = 0; i < RK_METHOD_COUNT; i++)
        rk_str_appendf(&list, "%s%s", i ? ", " : "", methods[i].name);
    return rk_str_take(&list);
}

/* --- aliases --- */

static const struct {
    const char *name;
    rk_method_id_t id;
} aliases[] = {
#define X(alias, id) {#alias, RK_METHOD_##id},
    RK_METHOD_ALIAS_TABLE(X)
#undef X
};

int64_t rk_method_aliases(const char **out, const struct rk_method *method)
{
    int64_t count = 0;

    for (size_t i = 0; i < RK_ARRAY_LEN(aliases); i++) {
        if (aliases[i].id != method->id)
            continue;
        RK_ASSERT(count < RK_METHOD_ALIASES_MAX);
        out[count++] = aliases[i].name;
    }
    return count;
}

/* The method of that name; for an alias the method that the role has. *all_roles: roles with such a method.
 */
static const struct rk_method *resolve(const char *name, uint32_t role, uint32_t *all_roles)
{
    const struct rk_method *row = rk_method_find(name);

    *all_roles = row ? row->roles : 0;
    for (size_t i = 0; i < RK_ARRAY_LEN(aliases); i++) {
        if (strcmp(aliases[i].name, name) != 0)
            continue;
        *all_roles |= methods[aliases[i].id].roles;
        if (methods[aliases[i].id].roles & role)
            row = &methods[aliases[i].id];
    }
    return row;
}

struct rk_status *rk_method_check_role(const struct rk_method **out, const char *role, const char *method)
{
    uint32_t bit = rk_role_parse(role), with_method;
    const struct rk_method *row = resolve(method, bit, &with_method);
    struct rk_status *st = NULL;
    char *known;

    *out = NULL;
    if (!with_method) {
        known = method_list();
        st = RK_FAIL_REASON(RK_NOT_FOUND, "UNKNOWN_METHOD", "unknown method '%s', expected one of %s", method,
                            known);
        rk_free(known);
        return st;
    }
    if (row && (row->roles & bit)) {
        *out = row;
        return NULL;
    }
    known = role_list(bit ? with_method : RK_ROLE_ANY);
    if (bit)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "role '%s' has no method '%s', expected one of %s", role, method,
                     known);
    else
        st = RK_FAIL_REASON(RK_NOT_FOUND, "UNKNOWN_ROLE", "unknown role '%s', expected one of %s", role,
                            known);
    rk_free(known);
    return st;
}

/* --- options --- */

static const struct rk_option_schema *find_option(const struct rk_method *method, const char *key)
{
    for (int64_t i = 0; i < method->num_options; i++) {
        if (strcmp(method->options[i].key, key) == 0)
            return &method->options[i];
    }
    return NULL;
}

/* Takes and returns the status. */
static struct rk_status *name_option(struct rk_status *st, const char *key)
{
    char *field;

    if (!st)
        return NULL;
    field = rk_format("option[%s]", key);
    st = rk_status_at_field(st, field);
    rk_free(field);
    return st;
}

static struct rk_status *unknown_option(const struct rk_method *method, const char *key)
{
    const char *keys[RK_ARRAY_LEN(options)];
    const char *suggestion;

    for (int64_t i = 0; i < method->num_options; i++)
        keys[i] = method->options[i].key;
    suggestion = rk_str_suggest(key, keys, method->num_options);
    if (suggestion)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s has no option '%s'; did you mean '%s'?",
                              method->name, key, suggestion);
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s has no option '%s'", method->name, key);
}

static const char *const option_type_names[] = {
    [RK_OPTION_BOOL] = "true or false",
    [RK_OPTION_INT] = "an integer",
    [RK_OPTION_REAL] = "a number",
    [RK_OPTION_STRING] = "a string",
    [RK_OPTION_JSON] = "a list, an object or a number",
};

static bool is_unset(const struct rk_option_schema *option, const struct rk_json *value)
{
    return rk_json_is_null(value) && option->default_text && strcmp(option->default_text, "null") == 0;
}

/* The value in the option's type: an integral real is an integer, an integer a real. NULL when it does not
 * fit. */
static struct rk_json *convert_option(const struct rk_option_schema *option, const struct rk_json *value)
{
    rk_json_type_t type = rk_json_type(value);
    bool is_number = type == RK_JSON_INT || type == RK_JSON_REAL;
    double real = rk_json_as_real(value, 0.0);

    if (is_unset(option, value))
        return rk_json_new_null();
    switch (option->type) {
    case RK_OPTION_BOOL:
        return type == RK_JSON_BOOL ? rk_json_clone(value) : NULL;
    case RK_OPTION_INT:
        if (type == RK_JSON_REAL && real >= -0x1p53 && real <= 0x1p53 && real == (double)(int64_t)real)
            return rk_json_new_int((int64_t)real);
        return type == RK_JSON_INT ? rk_json_clone(value) : NULL;
    case RK_OPTION_REAL:
        return is_number ? rk_json_new_real(real) : NULL;
    case RK_OPTION_STRING:
        return type == RK_JSON_STRING ? rk_json_clone(value) : NULL;
    case RK_OPTION_JSON:
        return is_number || type == RK_JSON_ARRAY || type == RK_JSON_OBJECT ? rk_json_clone(value) : NULL;
    }
    RK_ASSERT(!"option type out of range");
    return NULL;
}

static struct rk_status *complete_option(struct rk_json *out, const struct rk_method *method,
                                         const struct rk_option_schema *option, const struct rk_json *given)
{
    struct rk_json *value = NULL;

    if (!given && !option->default_text)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s needs the option '%s' (%s)", method->name,
                              option->key, option->doc);
    if (given) {
        value = convert_option(option, given);
        if (!value)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s, option '%s': expected %s, got %s",
                                  method->name, option->key, option_type_names[option->type],
                                  rk_json_type_name(rk_json_type(given)));
    } else {
        RK_TRY(rk_json_parse(&value, option->default_text, strlen(option->default_text), option->key, 0));
    }
    rk_json_set(out, option->key, value);
    return NULL;
}

struct rk_status *rk_method_complete_options(struct rk_json **out, const struct rk_method *method,
                                             const struct rk_json *given)
{
    struct rk_json *completed;
    struct rk_status *st = NULL;

    *out = NULL;
    if (!rk_json_is_null(given) && rk_json_type(given) != RK_JSON_OBJECT)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s: expected an object of options, got %s",
                              method->name, rk_json_type_name(rk_json_type(given)));
    completed = rk_json_new_object();
    for (void *it = rk_json_iter(given); it; it = rk_json_iter_next(given, it)) {
        if (!find_option(method, rk_json_iter_key(it)))
            RK_TRY_GOTO(st, name_option(unknown_option(method, rk_json_iter_key(it)), rk_json_iter_key(it)),
                        out);
    }
    for (int64_t i = 0; i < method->num_options; i++)
        RK_TRY_GOTO(st,
                    name_option(complete_option(completed, method, &method->options[i],
                                                rk_json_find(given, method->options[i].key)),
                                method->options[i].key),
                    out);
    *out = completed;
    completed = NULL;
out:
    rk_json_free(completed);
    return st;
}
