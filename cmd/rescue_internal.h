/* The model of a run that fails. */
#ifndef RK_RESCUE_INTERNAL_H
#define RK_RESCUE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "rl/rk_flows.h"
#include "driver/rk_driver.h"

/* The daemons that hold the model of the last step. */
typedef enum rk_holder {
    RK_HOLDER_NONE,
    RK_HOLDER_GROUP,   /* all answer, and have their communicators */
    RK_HOLDER_REPLICA, /* some daemons do not answer, but the others hold all weights */
} rk_holder_t;

/* The daemons that hold the model. `epoch`: of the driver's lease. None when another driver has claimed a
 * daemon; stopping daemons do not count. */
rk_holder_t rk_rescue_holder(const struct rk_driver_worker *workers, int32_t num_workers, uint64_t epoch);

struct rk_rescue {
    struct rk_driver *driver;
    struct rk_local *local;         /* the run's own daemons; NULL: it did not start them */
    struct rk_flow_context *flow;   /* with export_path */
    const char *hosts, *token_file; /* as given; NULL: not given */
    const char *tls_ca, *tls_cert, *tls_key;
    int64_t step;   /* the last one that was trained; 0: nothing to save */
    bool is_tried;  /* the export to export_path has failed already */
    bool is_silent; /* some daemons do not answer */
};

/* Exports the model of daemons that end with the run, else prints how to save it; daemons of the run
 * that keep it are detached. True when the model is at export_path. */
bool rk_rescue_model(struct rk_rescue *rescue);

#endif
