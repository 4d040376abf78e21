/* The table of commands, from which the overview, the manual and the completions are made. */
#include "cmd/cmd_internal.h"

const struct rk_command *const rk_commands[] = {
    &rk_cmd_run,
    &rk_cmd_verl,
    &rk_cmd_verl_env,
    &rk_cmd_plan,
    &rk_cmd_verify_layout,
    &rk_cmd_replay,
    &rk_cmd_status,
    &rk_cmd_top,
    &rk_cmd_events,
    &rk_cmd_debug_dump,
    &rk_cmd_methods,
    &rk_cmd_describe,
    &rk_cmd_call,
    &rk_cmd_checkpoint_save,
    &rk_cmd_checkpoint_load,
    &rk_cmd_checkpoint_list,
    &rk_cmd_checkpoint_inspect,
    &rk_cmd_checkpoint_export,
    &rk_cmd_shutdown,
    &rk_cmd_certs_init,
    &rk_cmd_certs_issue,
    &rk_cmd_config,
    &rk_cmd_completion,
    &rk_cmd_version,
};

const size_t rk_num_commands = RK_ARRAY_LEN(rk_commands);

const struct rk_exit_code rk_exit_codes[] = {
    {0, "ok"},          {1, "failed"},  {2, "usage or configuration"},
    {3, "unreachable"}, {4, "refused"}, {5, "timed out"},
};
const size_t rk_num_exit_codes = RK_ARRAY_LEN(rk_exit_codes);
const char rk_exit_by_signal[] =
    "SIGINT, SIGTERM and SIGHUP end it by the signal (in a shell: 130, 143, 129)";
