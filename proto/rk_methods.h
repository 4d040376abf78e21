/* The method table as data: methods, their columns and options (methods.def, columns.def, options.def). */
#ifndef RK_METHODS_H
#define RK_METHODS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_dtype.h"
#include "base/rk_json.h"
#include "base/rk_status.h"
#include "proto/methods.def"

RK_BEGIN_DECLS

struct rk_arena;
struct rk_list_methods_response;

enum rk_role_bits {
    RK_ROLE_ACTOR = 1u << 0,
    RK_ROLE_ROLLOUT = 1u << 1,
    RK_ROLE_REF = 1u << 2,
    RK_ROLE_CRITIC = 1u << 3,
    RK_ROLE_REWARD = 1u << 4,
    RK_ROLE_TEACHER = 1u << 5,
    RK_ROLE_TEACHER_2 = 1u << 6,
    RK_ROLE_TEACHER_3 = 1u << 7,
    RK_ROLE_TEACHER_4 = 1u << 8,
    RK_ROLE_TEACHERS = RK_ROLE_TEACHER | RK_ROLE_TEACHER_2 | RK_ROLE_TEACHER_3 | RK_ROLE_TEACHER_4,
    RK_ROLE_ANY = (1u << 9) - 1,
};

/* "actor" -> RK_ROLE_ACTOR; 0 when unknown. */
uint32_t rk_role_parse(const char *name);
const char *rk_role_name(uint32_t role_bit);

enum rk_method_flags {
    RK_MF_PURE = 1u << 0,
    RK_MF_MUTATES = 1u << 1,
    RK_MF_PLAN = 1u << 2,
    RK_MF_ANY_STATE = 1u << 3,
    RK_MF_ALONE = 1u << 4,
};

typedef enum rk_method_id {
#define X(id, name, roles, mode, mesh, exec, flags, in, out, options, doc) RK_METHOD_##id,
    RK_METHOD_TABLE(X)
#undef X
        RK_METHOD_COUNT
} rk_method_id_t;

enum { RK_METHOD_ALIASES_MAX = 4 };

struct rk_column_schema {
    const char *name;
    rk_dtype_t dtype;
    const char *dims; /* "B,P" */
    bool is_required;
    const char *doc;
};

typedef enum rk_option_type {
    RK_OPTION_BOOL,
    RK_OPTION_INT,
    RK_OPTION_REAL,
    RK_OPTION_STRING,
    RK_OPTION_JSON
} rk_option_type_t;

struct rk_option_schema {
    const char *key;
    rk_option_type_t type;
    const char *default_text; /* JSON text; NULL means required */
    const char *doc;
};

struct rk_method {
    rk_method_id_t id;
    const char *name;
    uint32_t roles;            /* enum rk_role_bits */
    const char *dispatch_mode; /* "MEGATRON_COMPUTE_PROTO" */
    /* Role over whose mesh the method runs; "" for the called role's. Several, joined by '+': the union of
     * their meshes, for ONE_TO_ALL ("actor+rollout"). */
    const char *dispatch_mesh;
    const char *execute_mode; /* "ALL" */
    uint32_t flags;           /* enum rk_method_flags */
    const char *doc;
    const struct rk_column_schema *in, *out; /* runs of the column table */
    int64_t num_in, num_out;
    const struct rk_option_schema *options;
    int64_t num_options;
};

/* NULL when unknown; aliases are unknown here. */
const struct rk_method *rk_method_find(const char *name);
const struct rk_method *rk_method_get(rk_method_id_t id);
/* The row of the name or alias for the role. NOT_FOUND (reason UNKNOWN_METHOD or UNKNOWN_ROLE) with
 * the known names; PERMISSION_DENIED is not used here: a role that lacks the method is INVALID_ARGUMENT
 * naming the roles that have it. */
struct rk_status *rk_method_check_role(const struct rk_method **out, const char *role,
                                       const char *method) RK_NODISCARD;
/* Checks an object of options against the method's rows (unknown key with a suggestion, wrong type, missing)
 * and returns a new object with every row present, defaults filled in. */
struct rk_status *rk_method_complete_options(struct rk_json **out, const struct rk_method *method,
                                             const struct rk_json *options) RK_NODISCARD;
/* The roles over whose meshes the method runs when it is called on `role`. */
enum { RK_METHOD_MESHES_MAX = 4 };
struct rk_method_meshes {
    int32_t count; /* at least 1 */
    char role[RK_METHOD_MESHES_MAX][32];
};
struct rk_method_meshes rk_method_get_meshes(const struct rk_method *method, const char *role);
/* The aliases of a method into `out`, of RK_METHOD_ALIASES_MAX; returns their number. */
int64_t rk_method_aliases(const char **out, const struct rk_method *method);
/* The whole table as ListMethods sends it. Lives in the arena and borrows from the table. */
void rk_methods_describe(struct rk_list_methods_response *out, struct rk_arena *arena);

RK_END_DECLS

#endif
