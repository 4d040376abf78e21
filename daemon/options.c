#include "daemon/options_internal.h"

#include "base/rk_array.h"
#include "daemon/rk_daemon.h"

const struct rk_option rk_daemon_options[] = {
    {"config", "FILE", "configuration (default: " RK_DAEMON_CONFIG_FILE " when it exists)"},
    {"check-config", NULL,
     "print the resolved configuration with the origin of each value, check everything except opening the "
     "device, and exit"},
    {"device", "DEVICE", "cpu (default) or cuda:N"},
    {"slot", "N", "number of this daemon on its host"},
    {"record", "DIR", "record every call in this folder, for rankctl replay"},
    {"insecure", NULL, "allow an address that other hosts can reach without TLS"},
    {"help", NULL, "print the flags and keys, and exit"},
    {"version", NULL, "print the version, and exit"},
    {NULL, NULL, NULL},
};

const struct rk_exit_code rk_daemon_exit_codes[] = {
    {0, "normal end (also by SIGTERM)"},
    {1, "failed"},
    {2, "usage or configuration"},
    {4, "address, lock or device held by another process"},
};
const size_t rk_num_daemon_exit_codes = RK_ARRAY_LEN(rk_daemon_exit_codes);
