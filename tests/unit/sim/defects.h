/* Deliberate defects, to test that the simulation finds them (defects_daemon.c, defects_driver.c). */
#ifndef RK_TEST_UNIT_SIM_DEFECTS_H
#define RK_TEST_UNIT_SIM_DEFECTS_H

typedef enum sim_defect {
    SIM_DEFECT_NONE,
    /* the daemon's */
    SIM_DEFECT_NO_DEDUPE,   /* a known request_id, or a used sequence number, runs again */
    SIM_DEFECT_NO_FENCE,    /* a call of any epoch is accepted */
    SIM_DEFECT_NO_CANCEL,   /* a new lease does not end running calls */
    SIM_DEFECT_TWO_HOLDERS, /* an active lease is granted to another driver */
    /* the driver's */
    SIM_DEFECT_FRESH_RETRY,   /* a committed call that failed is repeated as a new call */
    SIM_DEFECT_SEQ_LOST,      /* the sequence number of a committed call is used again */
    SIM_DEFECT_NO_TURNS,      /* calls on the same ranks are not offered one after the other */
    SIM_DEFECT_DONE_TOO_SOON, /* a call counts as done although a rank's stream broke */
    SIM_DEFECT_COUNT
} sim_defect_t;

#endif
