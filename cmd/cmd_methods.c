/* methods and describe: from a daemon if one is named, else from the built-in table. */
#include "cmd/cmd_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *load(const struct rk_cli *cli, struct rk_arena *arena,
                              struct rk_list_methods_response *out)
{
    struct rk_hosts hosts = {0};
    struct rk_driver *driver = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    if (hosts.count == 0) {
        rk_methods_describe(out, arena);
        goto out;
    }
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    st = rk_driver_list_methods(driver, arena, out);
out:
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    return st;
}

/* --- printing --- */

static char *names_text(const char *const *names, int64_t count)
{
    struct rk_str text = {0};

    for (int64_t i = 0; i < count; i++)
        rk_str_appendf(&text, "%s%s", i > 0 ? "," : "", names[i]);
    rk_str_append(&text, "");
    return rk_str_take(&text);
}

static struct rk_json *names_json(const char *const *names, int64_t count)
{
    struct rk_json *list = rk_json_new_array();

    for (int64_t i = 0; i < count; i++)
        rk_json_append(list, rk_json_new_string(names[i]));
    return list;
}

static struct rk_json *fields_json(const struct rk_field_info *fields, int64_t count, bool are_options)
{
    struct rk_json *list = rk_json_new_array();

    for (int64_t i = 0; i < count; i++) {
        struct rk_json *item = rk_json_new_object();

        rk_json_set(item, "name", rk_json_new_string(fields[i].name));
        if (!are_options)
            rk_json_set(item, "dtype", rk_json_new_string(rk_dtype_name(fields[i].dtype)));
        rk_json_set(item, are_options ? "type" : "dims", rk_json_new_string(fields[i].dims));
        rk_json_set(item, "required", rk_json_new_bool(fields[i].is_required));
        rk_json_set(item, "doc", rk_json_new_string(fields[i].doc));
        rk_json_append(list, item);
    }
    return list;
}

static struct rk_json *method_json(const struct rk_method_info *method)
{
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "name", rk_json_new_string(method->name));
    rk_json_set(json, "aliases", names_json(method->aliases, method->num_aliases));
    rk_json_set(json, "doc", rk_json_new_string(method->doc));
    rk_json_set(json, "roles", names_json(method->roles, method->num_roles));
    rk_json_set(json, "dispatch", rk_json_new_string(method->dispatch));
    rk_json_set(json, "execute", rk_json_new_string(method->execute));
    rk_json_set(json, "pure", rk_json_new_bool(method->is_pure));
    rk_json_set(json, "mutates", rk_json_new_bool(method->is_mutating));
    rk_json_set(json, "plan", rk_json_new_bool(method->needs_plan));
    rk_json_set(json, "input", fields_json(method->input, method->num_input, false));
    rk_json_set(json, "output", fields_json(method->output, method->num_output, false));
    rk_json_set(json, "options", fields_json(method->options, method->num_options, true));
    return json;
}

static struct rk_status *run_methods(struct rk_cli *cli)
{
    static const char *const titles[] = {"METHOD", "ROLES", "DISPATCH", "EFFECT", "ALIASES", "WHAT"};
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_list_methods_response list;
    struct rk_json *body, *methods;
    struct rk_table table;
    struct rk_status *st;

    RK_TRY_GOTO(st, load(cli, arena, &list), out);
    if (rk_cli_is_json(cli)) {
        body = rk_json_new_object();
        methods = rk_json_new_array();
        for (int64_t i = 0; i < list.num_methods; i++)
            rk_json_append(methods, method_json(&list.methods[i]));
        rk_json_set(body, "methods", methods);
        rk_cli_print_json("Methods", body);
        goto out;
    }
    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int64_t i = 0; i < list.num_methods; i++) {
        const struct rk_method_info *method = &list.methods[i];
        char *roles = names_text(method->roles, method->num_roles);
        char *aliases = names_text(method->aliases, method->num_aliases);

        rk_table_add(&table, method->name);
        rk_table_add(&table, roles);
        rk_table_add(&table, method->dispatch);
        rk_table_add(&table, method->is_mutating ? "mutates" : method->is_pure ? "pure" : NULL);
        rk_table_add(&table, *aliases ? aliases : NULL);
        rk_table_add(&table, method->doc);
        rk_free(aliases);
        rk_free(roles);
    }
    rk_table_print(&table, stdout);
out:
    rk_arena_destroy(arena);
    return st;
}

static void print_fields(const char *title, const struct rk_field_info *fields, int64_t count,
                         bool are_options)
{
    const char *const titles[] = {title, are_options ? "TYPE" : "DTYPE [DIMS]", "REQUIRED", "WHAT"};
    struct rk_table table;

    if (count == 0)
        return;
    printf("\n");
    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int64_t i = 0; i < count; i++) {
        rk_table_add(&table, fields[i].name);
        if (are_options)
            rk_table_add(&table, fields[i].dims);
        else
            rk_table_addf(&table, "%s [%s]", rk_dtype_name(fields[i].dtype), fields[i].dims);
        rk_table_add(&table, fields[i].is_required ? "yes" : "no");
        rk_table_add(&table, fields[i].doc);
    }
    rk_table_print(&table, stdout);
}

/* --- describe --- */

static bool has_text(const char *const *texts, int64_t count, const char *text)
{
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(texts[i], text) == 0)
            return true;
    }
    return false;
}

static bool has_name(const struct rk_method_info *method, const char *name)
{
    return strcmp(method->name, name) == 0 || has_text(method->aliases, method->num_aliases, name);
}

/* The method of that name or alias: NULL if `role` has none. An alias may
 * belong to several methods; then a role is needed. */
static const struct rk_method_info *find_method(const struct rk_list_methods_response *list, const char *role,
                                                const char *name, int64_t *num_found)
{
    const struct rk_method_info *found = NULL;

    *num_found = 0;
    for (int64_t i = 0; i < list->num_methods; i++) {
        const struct rk_method_info *method = &list->methods[i];

        if (!has_name(method, name) || (role && !has_text(method->roles, method->num_roles, role)))
            continue;
        found = method;
        ++*num_found;
    }
    return found;
}

/* The error for a name of no method, or of several. */
static struct rk_status *not_one_method(const struct rk_list_methods_response *list, const char *role,
                                        const char *name)
{
    struct rk_str known = {0};
    struct rk_status *st;

    for (int64_t i = 0; i < list->num_methods; i++) {
        const struct rk_method_info *method = &list->methods[i];

        for (int64_t k = 0; has_name(method, name) && k < method->num_roles; k++)
            rk_str_appendf(&known, "%s%s.%s", known.bytes ? ", " : "", method->roles[k], method->name);
    }
    if (!known.bytes)
        st = RK_FAIL_REASON(RK_NOT_FOUND, "UNKNOWN_METHOD",
                            "unknown method '%s'; 'rankctl methods' lists all", name);
    else if (role)
        st = rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "role '%s' has no method %s, expected one of %s", role,
                                  name, rk_str_text(&known)));
    else
        st = rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                  "'%s' is an alias of several methods, expected one of %s", name,
                                  rk_str_text(&known)));
    rk_str_fini(&known);
    return st;
}

static void print_method(const struct rk_method_info *method)
{
    char *roles = names_text(method->roles, method->num_roles);
    char *aliases = names_text(method->aliases, method->num_aliases);

    printf("%s: %s\n", method->name, method->doc);
    if (*aliases)
        printf("aliases: %s\n", aliases);
    printf("roles: %s\ndispatch: %s, execute: %s%s%s%s\n", roles, method->dispatch, method->execute,
           method->is_pure ? ", pure" : "", method->is_mutating ? ", mutates" : "",
           method->needs_plan ? ", needs a plan" : "");
    rk_free(aliases);
    rk_free(roles);
    print_fields("INPUT", method->input, method->num_input, false);
    print_fields("OUTPUT", method->output, method->num_output, false);
    print_fields("OPTION", method->options, method->num_options, true);
}

static struct rk_status *run_describe(struct rk_cli *cli)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_list_methods_response list;
    const struct rk_method_info *method;
    const char *dot = strchr(cli->line.args.items[0], '.'), *name = dot ? dot + 1 : cli->line.args.items[0];
    char *role = dot ? rk_strndup(cli->line.args.items[0], (size_t)(dot - cli->line.args.items[0])) : NULL;
    struct rk_status *st;
    int64_t num_found;

    RK_TRY_GOTO(st, load(cli, arena, &list), out);
    method = find_method(&list, role, name, &num_found);
    if (num_found != 1)
        st = not_one_method(&list, role, name);
    else if (rk_cli_is_json(cli))
        rk_cli_print_json("Method", method_json(method));
    else
        print_method(method);
out:
    rk_free(role);
    rk_arena_destroy(arena);
    return st;
}

const struct rk_command rk_cmd_methods = {
    .name = "methods",
    .args = "",
    .summary = "list the methods that daemons offer",
    .details = "Without daemons the table of this version is printed.",
    .run = run_methods,
};

const struct rk_command rk_cmd_describe = {
    .name = "describe",
    .args = "[ROLE.]METHOD",
    .min_args = 1,
    .max_args = 1,
    .summary = "show the columns and options of one method",
    .details = "Without daemons the table of this version is used.",
    .run = run_describe,
};
