/* Weights: their owner, the roles that share them, and the roles between which update_weights copies them. */
#include "worker/worker_internal.h"

#include "base/rk_alloc.h"

struct rk_weights *rk_weights_create(const struct rk_role *owner)
{
    struct rk_weights *weights = rk_calloc(1, sizeof(*weights));

    weights->owner = owner->kind;
    return weights;
}

void rk_weights_destroy(struct rk_weights *weights)
{
    rk_free(weights);
}

bool rk_role_owns_weights(const struct rk_role *role)
{
    return role->weights && role->weights->owner == role->kind;
}

bool rk_role_uses_weights_of(const struct rk_role *user, const struct rk_role *owner)
{
    return user != owner && owner->weights && user->weights == owner->weights && rk_role_owns_weights(owner);
}

void rk_weight_update_bind(struct rk_worker *worker)
{
    struct rk_weight_update *update = &worker->weight_update;

    RK_ASSERT_ENGINE_THREAD(worker);
    RK_ASSERT(!update->link);
    *update = (struct rk_weight_update){0};
    for (int32_t i = 0; i < worker->num_roles; i++) {
        struct rk_role *role = &worker->roles[i];

        if (role->kind->sends_weights)
            update->source = role;
        if (role->kind->generates)
            update->destination = role;
    }
}
