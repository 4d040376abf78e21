/* The process metrics with the names that Prometheus client libraries use. Values that the system does not
 * report are omitted. */
#include <dirent.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rk_time.h"
#include "daemon/metrics/metrics.h"

static void put_cpu(struct rk_metrics_text *text)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return;
    rk_metrics_put_real(text, RK_METRIC_PROCESS_CPU, NULL, 0,
                        (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                            (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
}

static void put_memory(struct rk_metrics_text *text)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0, resident = 0;
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    int count = 0;

    if (file) {
        count = fscanf(file, "%llu %llu", &pages, &resident);
        fclose(file);
    }
    if (count != 2)
        return;
    rk_metrics_put_int(text, RK_METRIC_PROCESS_RESIDENT, NULL, 0, resident * page_bytes);
    rk_metrics_put_int(text, RK_METRIC_PROCESS_VIRTUAL, NULL, 0, pages * page_bytes);
}

static void put_files(struct rk_metrics_text *text)
{
    DIR *dir = opendir("/proc/self/fd");
    struct rlimit limit;
    uint64_t count = 0;

    if (dir) {
        while (readdir(dir))
            count++;
        closedir(dir);
        rk_metrics_put_int(text, RK_METRIC_PROCESS_FDS, NULL, 0, count - 3); /* not ".", ".." and itself */
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        rk_metrics_put_real(text, RK_METRIC_PROCESS_FDS_MAX, NULL, 0, (double)limit.rlim_cur);
}

void rk_metrics_put_process(struct rk_metrics_text *text, int64_t uptime_ns)
{
    put_cpu(text);
    put_memory(text);
    put_files(text);
    rk_metrics_put_real(text, RK_METRIC_PROCESS_START, NULL, 0,
                        (double)(rk_time_unix_ns() - uptime_ns) / 1e9);
}
