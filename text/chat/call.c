/* Calls of table rows and macros: puts the arguments in the order of the parameters. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* --- rows --- */

/* Position of the name in "a b c"; -1 if absent. */
static int find_param(const char *params, const struct rk_text *name)
{
    int index = 0;

    for (const char *p = params; *p; index++) {
        size_t bytes = strcspn(p, " ");

        if (name->bytes == (int64_t)bytes && memcmp(name->data, p, bytes) == 0)
            return index;
        p += bytes + (p[bytes] == ' ');
    }
    return -1;
}

static int count_params(const char *params)
{
    int count = *params != '\0';

    for (const char *p = params; *p; p++)
        count += *p == ' ';
    return count;
}

static struct rk_status *bind(const struct rk_callable *row, const struct rk_actuals *actuals,
                              struct rk_row_call *call)
{
    int count = count_params(row->params);

    RK_ASSERT(count <= RK_CALLABLE_MAX_PARAMS);
    if (actuals->num_values > count)
        return RK_TEMPLATE_ERROR("%s: %lld arguments, expected at most %d", row->name,
                                 (long long)actuals->num_values, count);
    for (int64_t i = 0; i < actuals->num_values; i++)
        call->args[i] = actuals->values[i];
    for (int64_t i = 0; i < actuals->num_named; i++) {
        const struct rk_text *name = actuals->names[i].string;
        int at = find_param(row->params, name);

        if (at < 0 || call->args[at].kind != RK_VALUE_UNSET)
            return RK_TEMPLATE_ERROR("%s: %s argument '%.*s'", row->name, at < 0 ? "unknown" : "repeated",
                                     (int)RK_MIN(name->bytes, 64), name->data);
        call->args[at] = actuals->named[i];
    }
    for (int i = 0; i < row->num_required; i++) {
        if (call->args[i].kind == RK_VALUE_UNSET)
            return RK_TEMPLATE_ERROR("%s: argument %d of '%s' is missing", row->name, i + 1, row->params);
    }
    return NULL;
}

struct rk_status *rk_call_row(struct rk_render *r, const struct rk_callable *row, rk_value_t self,
                              const struct rk_actuals *actuals, rk_value_t *out)
{
    struct rk_row_call call = {.self = self, .actuals = actuals};

    if (strcmp(row->params, "*") != 0)
        RK_TRY(bind(row, actuals, &call));
    return row->run(r, out, &call);
}

/* --- macros --- */

/* The call's argument for a parameter, by position or by name, or UNSET. Marks a name as used. */
static rk_value_t actual_of(const struct rk_actuals *actuals, int32_t i, const struct rk_text *name,
                            bool *used)
{
    if (i < actuals->num_values)
        return actuals->values[i];
    for (int64_t k = 0; k < actuals->num_named; k++) {
        const struct rk_text *given = actuals->names[k].string;

        if (given->bytes == name->bytes && memcmp(given->data, name->data, (size_t)name->bytes) == 0) {
            used[k] = true;
            return actuals->named[k];
        }
    }
    return (rk_value_t){.kind = RK_VALUE_UNSET};
}

static struct rk_status *bind_params(struct rk_render *r, const struct rk_node *node,
                                     const struct rk_actuals *actuals, bool *used)
{
    for (int32_t i = 0; i < node->num_items; i++) {
        const struct rk_node *param = node->items[i];
        rk_value_t value = actual_of(actuals, i, param->value.string, used);

        if (value.kind == RK_VALUE_UNSET && param->a)
            RK_TRY(rk_eval(r, param->a, &value));
        else if (value.kind == RK_VALUE_UNSET)
            value = rk_value_undefined(param->value.string->data);
        RK_TRY(rk_scope_put(r, r->scope, param->id, value));
    }
    return NULL;
}

static bool has_param(const struct rk_node *node, int32_t id)
{
    for (int32_t i = 0; i < node->num_items; i++) {
        if (node->items[i]->id == id)
            return true;
    }
    return false;
}

/* The variable `caller` of macros that use it. */
static struct rk_status *bind_caller(struct rk_render *r, const struct rk_node *node,
                                     const struct rk_actuals *actuals, bool *used)
{
    static const struct rk_text caller = {.data = "caller", .bytes = 6, .chars = 6};
    rk_value_t value;

    if (!(node->uses & RK_MACRO_USES_CALLER) || has_param(node, r->jinja->id_caller))
        return NULL;
    value = actual_of(&(struct rk_actuals){.names = actuals->names,
                                           .named = actuals->named,
                                           .num_named = actuals->num_named},
                      0, &caller, used);
    if (value.kind == RK_VALUE_UNSET || value.kind == RK_VALUE_NONE)
        value = rk_value_undefined("caller");
    return rk_scope_put(r, r->scope, r->jinja->id_caller, value);
}

/* The variable `kwargs` of macros that use it; in other macros an unknown name is an error. */
static struct rk_status *bind_kwargs(struct rk_render *r, const struct rk_node *node,
                                     const struct rk_actuals *actuals, const bool *used)
{
    bool takes_all = (node->uses & RK_MACRO_USES_KWARGS) != 0;
    rk_value_t rest;

    RK_TRY(rk_value_new_dict(r, &rest, RK_VALUE_DICT, actuals->num_named));
    for (int64_t i = 0; i < actuals->num_named; i++) {
        if (used[i])
            continue;
        if (!takes_all)
            return RK_TEMPLATE_ERROR("the macro has no argument '%.*s'",
                                     (int)RK_MIN(actuals->names[i].string->bytes, 64),
                                     actuals->names[i].string->data);
        RK_TRY(rk_dict_put(r, rest.dict, actuals->names[i], actuals->named[i]));
    }
    return takes_all ? rk_scope_put(r, r->scope, r->jinja->id_kwargs, rest) : NULL;
}

static struct rk_status *bind_varargs(struct rk_render *r, const struct rk_node *node,
                                      const struct rk_actuals *actuals)
{
    rk_value_t rest;

    if (!(node->uses & RK_MACRO_USES_VARARGS))
        return actuals->num_values <= node->num_items
                   ? NULL
                   : RK_TEMPLATE_ERROR("the macro takes %d arguments, got %lld", node->num_items,
                                       (long long)actuals->num_values);
    RK_TRY(rk_value_new_list(r, &rest, RK_VALUE_TUPLE, actuals->num_values));
    for (int64_t i = node->num_items; i < actuals->num_values; i++)
        RK_TRY(rk_list_append(r, rest.list, actuals->values[i]));
    return rk_scope_put(r, r->scope, r->jinja->id_varargs, rest);
}

static struct rk_status *bind_macro(struct rk_render *r, const struct rk_node *node,
                                    const struct rk_actuals *actuals)
{
    void *used;

    RK_TRY(rk_render_alloc(r, &used, (size_t)actuals->num_named + 1));
    RK_TRY(bind_params(r, node, actuals, used));
    RK_TRY(bind_caller(r, node, actuals, used));
    RK_TRY(bind_kwargs(r, node, actuals, used));
    return bind_varargs(r, node, actuals);
}

struct rk_status *rk_call_macro(struct rk_render *r, const struct rk_macro *macro,
                                const struct rk_actuals *actuals, rk_value_t *out)
{
    struct rk_scope *outer = r->scope;
    struct rk_status *st = rk_scope_push(r, macro->scope);

    if (!st)
        st = bind_macro(r, macro->node, actuals);
    if (!st)
        st = rk_render_capture(r, macro->node->b, out);
    r->scope = outer;
    return st;
}

struct rk_status *rk_call_value(struct rk_render *r, rk_value_t callee, const struct rk_actuals *actuals,
                                rk_value_t *out)
{
    static const rk_value_t nothing = {.kind = RK_VALUE_UNSET};

    switch (callee.kind) {
    case RK_VALUE_UNDEFINED:
        return rk_undefined_error(callee);
    case RK_VALUE_FUNCTION:
        return rk_call_row(r, callee.function, nothing, actuals, out);
    case RK_VALUE_METHOD:
        if (callee.method->self.kind == RK_VALUE_STRING && callee.method->self.string->is_markup)
            return RK_FAIL(RK_UNIMPLEMENTED, "methods of the result of |safe or |escape are not supported");
        return rk_call_row(r, callee.method->row, callee.method->self, actuals, out);
    case RK_VALUE_MACRO:
        return rk_call_macro(r, callee.macro, actuals, out);
    default:
        return RK_TEMPLATE_ERROR("a value of type %s cannot be called", rk_value_type_name(callee));
    }
}

/* --- arguments of rows --- */

struct rk_status *rk_arg_int(rk_value_t arg, const char *name, int64_t fallback, int64_t *out)
{
    *out = fallback;
    if (arg.kind == RK_VALUE_UNSET || rk_value_as_int(arg, out))
        return NULL;
    if (arg.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(arg);
    return RK_TEMPLATE_ERROR("%s: expected an integer, got %s", name, rk_value_type_name(arg));
}

struct rk_status *rk_arg_bool(struct rk_render *r, rk_value_t arg, bool fallback, bool *out)
{
    *out = fallback;
    return arg.kind == RK_VALUE_UNSET ? NULL : rk_value_truth(r, arg, out);
}

struct rk_status *rk_arg_text(rk_value_t arg, const char *name, struct rk_text **out)
{
    *out = arg.kind == RK_VALUE_STRING ? arg.string : NULL;
    if (*out || arg.kind == RK_VALUE_UNSET || arg.kind == RK_VALUE_NONE)
        return NULL;
    if (arg.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(arg);
    return RK_TEMPLATE_ERROR("%s: expected a string, got %s", name, rk_value_type_name(arg));
}

struct rk_status *rk_arg_need_text(rk_value_t arg, const char *name, struct rk_text **out)
{
    RK_TRY(rk_arg_text(arg, name, out));
    return *out ? NULL : RK_TEMPLATE_ERROR("%s: expected a string, got %s", name, rk_value_type_name(arg));
}
