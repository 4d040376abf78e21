#include "base/rk_child.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

void rk_child_begin(pid_t parent, const int *reset, size_t num_reset)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigset_t none;

    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    for (size_t i = 0; i < num_reset; i++)
        sigaction(reset[i], &action, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}
