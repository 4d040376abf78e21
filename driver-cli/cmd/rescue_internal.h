/* The model of a run that fails. */
#ifndef RK_RESCUE_INTERNAL_H
#define RK_RESCUE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "driver-cli/driver/flows/flows_internal.h"
#include "driver-cli/rk_driver.h"

struct rk_rescue {
    struct rk_driver *driver;
    struct rk_local *local;         /* the run's own daemons; NULL: it did not start them */
    struct rk_flow_context *flow;   /* with export_path */
    const char *hosts, *token_file; /* as given; NULL: not given */
    const char *tls_ca, *tls_cert, *tls_key;
    int64_t step;  /* the last one that was trained; 0: nothing to save */
    bool is_tried; /* the export to export_path has failed already */
};

/* Exports the model of daemons that end with the run, else prints how to save it; daemons of the run
 * that keep it are detached. True when the model is at export_path. */
bool rk_rescue_model(struct rk_rescue *rescue);

#endif
