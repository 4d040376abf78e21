#include "engine/rk_plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "generated/rk_interface.h"

/* At most one per device backend; a failed load does not count. */
#define MAX_PLUGINS        8
#define BACKEND_BYTES      32
#define BACKEND_CHARACTERS "abcdefghijklmnopqrstuvwxyz0123456789_"

static char loaded[MAX_PLUGINS][BACKEND_BYTES];
static int num_loaded;

static bool is_loaded(const char *backend)
{
    for (int i = 0; i < num_loaded; i++) {
        if (strcmp(loaded[i], backend) == 0)
            return true;
    }
    return false;
}

/* The part of a device name before ':'. It becomes part of a file name, so only letters and digits are
 * allowed. */
static struct rk_status *parse_backend(char backend[BACKEND_BYTES], const char *device_name)
{
    size_t bytes = strcspn(device_name, ":");

    if (bytes == 0 || bytes >= BACKEND_BYTES || strspn(device_name, BACKEND_CHARACTERS) != bytes)
        return RK_FAIL(RK_INVALID_ARGUMENT, "device '%s': expected NAME or NAME:INDEX", device_name);
    memcpy(backend, device_name, bytes);
    backend[bytes] = '\0';
    return NULL;
}

/* The lib directory of an installation, relative to the running program; "" when /proc does not show the
 * program's path. */
static char *program_folder(void)
{
    char path[PATH_MAX];
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof(path) - 1);

    path[bytes < 0 ? 0 : bytes] = '\0';
    return rk_strndup(path, (size_t)(strrchr(path, '/') ? strrchr(path, '/') - path : 0));
}

static struct rk_status *find_library(char **out, const char *backend)
{
    char *folder = program_folder();
    char *installed = rk_format("%s/../lib/librankd_%s.so", folder, backend);
    char *beside = rk_format("%s/librankd_%s.so", folder, backend);
    struct rk_status *st = NULL;

    *out = NULL;
    if (access(installed, F_OK) == 0)
        *out = rk_strdup(installed);
    else if (access(beside, F_OK) == 0)
        *out = rk_strdup(beside);
    else
        st = RK_FAIL_REASON(RK_FAILED_PRECONDITION, "PLUGIN_MISSING",
                            "the plug-in of device '%s' is not installed: neither %s nor %s exists", backend,
                            installed, beside);
    rk_free(folder);
    rk_free(installed);
    rk_free(beside);
    return st;
}

static struct rk_status *broken(const char *why)
{
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "PLUGIN_BROKEN", "%s", why);
}

/* --- the file --- */

static bool is_inside(uint64_t offset, uint64_t bytes, uint64_t file_bytes)
{
    return offset <= file_bytes && bytes <= file_bytes - offset;
}

/* Whether the section headers, which are at the end, and the segments that the loader maps are inside the
 * file. */
static bool is_elf_whole(int fd, const ElfW(Ehdr) * elf, uint64_t file_bytes)
{
    if (!is_inside(elf->e_shoff, (uint64_t)elf->e_shnum * elf->e_shentsize, file_bytes))
        return false;
    for (int i = 0; i < elf->e_phnum; i++) {
        uint64_t offset = elf->e_phoff + (uint64_t)i * elf->e_phentsize;
        ElfW(Phdr) part;

        if (pread(fd, &part, sizeof(part), (off_t)offset) != sizeof(part))
            return false;
        if (part.p_type == PT_LOAD && !is_inside(part.p_offset, part.p_filesz, file_bytes))
            return false;
    }
    return true;
}

/* Detects a truncated library: the loader would map it, and the process would die of SIGBUS beyond its end.
 * Files that are not libraries are left to the loader's error. */
static bool is_cut_off(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    ElfW(Ehdr) elf;
    bool is_cut = false;

    if (fd < 0)
        return false;
    if (fstat(fd, &info) == 0 && pread(fd, &elf, sizeof(elf), 0) == sizeof(elf) &&
        memcmp(elf.e_ident, ELFMAG, SELFMAG) == 0)
        is_cut = !is_elf_whole(fd, &elf, (uint64_t)info.st_size);
    close(fd);
    return is_cut;
}

/* dlsym returns an object pointer; POSIX guarantees the conversion. */
static const struct rk_plugin *call_entry(void *library)
{
    const struct rk_plugin *(*get)(void) = NULL;
    void *symbol = dlsym(library, "rk_plugin_get");

    memcpy(&get, &symbol, sizeof(get));
    return get ? get() : NULL;
}

/* --- checks of the exported table --- */

static struct rk_status *check_plugin(const struct rk_plugin *plugin, const char *backend)
{
    if (!plugin)
        return broken("it has no rk_plugin_get(), expected a plug-in of rankd");
    if (plugin->abi != RK_PLUGIN_ABI)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "PLUGIN_BROKEN",
                              "it is of another build: it has abi=%u, this program %d", plugin->abi,
                              RK_PLUGIN_ABI);
    if (strcmp(plugin->interface, RK_INTERFACE) != 0)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "PLUGIN_BROKEN",
                              "it is of another build: it has the interface %s, this program %s",
                              plugin->interface, RK_INTERFACE);
    if (!plugin->device || strcmp(plugin->device->name, backend) != 0)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "PLUGIN_BROKEN", "it is for device '%s', not '%s'",
                              plugin->device ? plugin->device->name : "none", backend);
    return NULL;
}

/* An error of the tables means a defective plug-in. */
static struct rk_status *register_tables(const struct rk_plugin *plugin)
{
    struct rk_status *st = rk_device_register(plugin->device), *refused;

    if (!st && plugin->comm)
        st = rk_comm_register(plugin->comm);
    if (!st)
        return NULL;
    refused = broken(rk_status_message(st));
    rk_status_free(st);
    return refused;
}

struct rk_status *rk_plugin_add(const struct rk_plugin *plugin)
{
    RK_ASSERT(num_loaded < MAX_PLUGINS);
    RK_TRY(register_tables(plugin));
    snprintf(loaded[num_loaded++], BACKEND_BYTES, "%s", plugin->device->name);
    return NULL;
}

static struct rk_status *load_library(const char *path, const char *backend)
{
    const struct rk_plugin *plugin;
    struct rk_status *st;
    void *library;

    if (is_cut_off(path))
        return broken("the file is truncated");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return broken(dlerror());
    plugin = call_entry(library);
    st = check_plugin(plugin, backend);
    if (st) {
        dlclose(library);
        return st;
    }
    /* From here on the tables point into the library: it stays loaded, also after a later error. */
    RK_TRY(rk_plugin_add(plugin));
    RK_INFO("plug-in loaded path=%s", path);
    return NULL;
}

struct rk_status *rk_plugin_load(const char *device_name, const char *path)
{
    char backend[BACKEND_BYTES], *found = NULL;
    struct rk_status *st;

    RK_TRY(parse_backend(backend, device_name));
    if (strcmp(backend, "cpu") == 0 || is_loaded(backend))
        return NULL;
    if (num_loaded == MAX_PLUGINS)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "device '%s': %d plug-ins are loaded, which is the maximum",
                       device_name, MAX_PLUGINS);
    if (!path || !*path) {
        RK_TRY(find_library(&found, backend));
        path = found;
    }
    st = load_library(path, backend);
    if (st)
        st = RK_WRAP(st, "plug-in %s", path);
    rk_free(found);
    return st;
}
