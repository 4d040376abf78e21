/* What is broken on purpose, to see that the simulation finds it (defects.c). */
#ifndef RK_TEST_UNIT_SIM_DEFECTS_H
#define RK_TEST_UNIT_SIM_DEFECTS_H

typedef enum sim_defect {
    SIM_DEFECT_NONE,
    /* the daemon's */
    SIM_DEFECT_NO_DEDUPE,   /* a request_id that is known, or a number that is used, runs again */
    SIM_DEFECT_NO_FENCE,    /* a call of any epoch is taken */
    SIM_DEFECT_NO_CANCEL,   /* a new lease does not end what runs */
    SIM_DEFECT_TWO_HOLDERS, /* a lease that lives is granted to another driver */
    /* the driver's */
    SIM_DEFECT_FRESH_RETRY,   /* a call that was committed and failed is made again as a new one */
    SIM_DEFECT_SEQ_LOST,      /* the number that a commit has used up is used again */
    SIM_DEFECT_NO_TURNS,      /* calls on the same ranks are not offered one after the other */
    SIM_DEFECT_DONE_TOO_SOON, /* a call counts as done although a rank's stream broke */
    SIM_DEFECT_COUNT
} sim_defect_t;

#endif
