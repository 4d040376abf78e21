/* The method table in the form that ListMethods sends, for daemon and driver alike. */
#include "proto/rk_methods.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "proto/limits.h"
#include "proto/rk_messages.h"

static const char *const option_types[] = {
    [RK_OPTION_BOOL] = "BOOL",     [RK_OPTION_INT] = "INT",   [RK_OPTION_REAL] = "REAL",
    [RK_OPTION_STRING] = "STRING", [RK_OPTION_JSON] = "JSON",
};

/* Control plane: running out of memory here ends the process, like rk_malloc. */
static void *must_alloc(struct rk_arena *arena, int64_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(arena, (size_t)count, elem_bytes);

    RK_ASSERT(memory || count == 0);
    return memory;
}

/* Moves the text into the arena. */
static const char *take_text(struct rk_arena *arena, char *text)
{
    const char *copy = rk_arena_strdup(arena, text);

    RK_ASSERT(copy);
    rk_free(text);
    return copy;
}

static struct rk_field_info *describe_columns(struct rk_arena *arena, const struct rk_column_schema *rows,
                                              int64_t count)
{
    struct rk_field_info *fields = must_alloc(arena, count, sizeof(*fields));

    for (int64_t i = 0; i < count; i++)
        fields[i] = (struct rk_field_info){.name = rows[i].name,
                                           .dtype = rows[i].dtype,
                                           .dims = rows[i].dims,
                                           .is_required = rows[i].is_required,
                                           .doc = rows[i].doc};
    return fields;
}

static struct rk_field_info *describe_options(struct rk_arena *arena, const struct rk_option_schema *rows,
                                              int64_t count)
{
    struct rk_field_info *fields = must_alloc(arena, count, sizeof(*fields));

    for (int64_t i = 0; i < count; i++) {
        const char *value = rows[i].default_text;

        fields[i] = (struct rk_field_info){
            .name = rows[i].key,
            .dims = take_text(arena, rk_format("%s%s%s", option_types[rows[i].type], value ? " = " : "",
                                               value ? value : "")),
            .is_required = !value,
            .doc = rows[i].doc,
        };
    }
    return fields;
}

/* "ND_COMPUTE(rollout)" */
static const char *describe_dispatch(struct rk_arena *arena, const struct rk_method *method)
{
    if (!method->dispatch_mesh[0])
        return method->dispatch_mode;
    return take_text(arena, rk_format("%s(%s)", method->dispatch_mode, method->dispatch_mesh));
}

static struct rk_method_info describe_method(struct rk_arena *arena, const struct rk_method *method)
{
    const char **roles = must_alloc(arena, RK_LIMIT_ROLES, sizeof(*roles));
    const char **aliases = must_alloc(arena, RK_METHOD_ALIASES_MAX, sizeof(*aliases));
    struct rk_method_info info = {
        .name = method->name,
        .num_aliases = rk_method_aliases(aliases, method),
        .aliases = aliases,
        .doc = method->doc,
        .roles = roles,
        .dispatch = describe_dispatch(arena, method),
        .execute = method->execute_mode,
        .is_pure = (method->flags & RK_MF_PURE) != 0,
        .is_mutating = (method->flags & RK_MF_MUTATES) != 0,
        .needs_plan = (method->flags & RK_MF_PLAN) != 0,
        .num_input = method->num_in,
        .num_output = method->num_out,
        .num_options = method->num_options,
        .input = describe_columns(arena, method->in, method->num_in),
        .output = describe_columns(arena, method->out, method->num_out),
        .options = describe_options(arena, method->options, method->num_options),
    };

    _Static_assert(RK_ROLE_ANY < 1u << RK_LIMIT_ROLES, "every role has a place");
    for (uint32_t bit = 1; bit & RK_ROLE_ANY; bit <<= 1) {
        if (method->roles & bit)
            roles[info.num_roles++] = rk_role_name(bit);
    }
    return info;
}

void rk_methods_describe(struct rk_list_methods_response *out, struct rk_arena *arena)
{
    out->num_methods = RK_METHOD_COUNT;
    out->methods = must_alloc(arena, RK_METHOD_COUNT, sizeof(*out->methods));
    for (int id = 0; id < RK_METHOD_COUNT; id++)
        out->methods[id] = describe_method(arena, rk_method_get((rk_method_id_t)id));
}
