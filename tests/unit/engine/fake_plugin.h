/* The devices that librankd_fake.so simulates: fake:INDEX. */
#ifndef RK_TEST_FAKE_PLUGIN_H
#define RK_TEST_FAKE_PLUGIN_H

/* A device with any other index opens. */
enum fake_index {
    FAKE_NO_DRIVER = 100,
    FAKE_NO_DEVICE,
    FAKE_TOO_OLD, /* compute capability */
    FAKE_NOT_READY,
    FAKE_FULL,
    FAKE_BUSY,
    FAKE_LOST /* opens and is lost at the first copy */
};

#endif
