#!/bin/sh
# Checks every #include against the module table below (docs/architecture.md shows it as a picture):
#   - a module includes the public headers of the modules in its row, and nothing private of another module (a
#     module's unit tests, the simulation and the fuzz targets may);
#   - project headers are named from the root and exist; a source includes its own header first;
#   - a third-party header appears only in the files that may know its library.
# Prints FILE:LINE: MESSAGE for each violation and exits 1.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | awk '
BEGIN {
    # --- who may include whom; the tests and the benchmark may include everything ---
    allowed["base"] = "base"
    allowed["proto"] = "proto base"
    allowed["kernels"] = "kernels base"
    allowed["engine"] = "engine kernels base"
    allowed["dispatch"] = "dispatch proto base"
    allowed["worker"] = "worker dispatch engine kernels proto base"
    allowed["daemon"] = "daemon worker dispatch proto base"
    allowed["driver-cli"] = "driver-cli dispatch proto base"
    everything = "base proto kernels engine dispatch worker daemon driver-cli"
    allowed["tests"] = "tests " everything
    allowed["bench"] = "bench " everything
    allowed["examples"] = "driver-cli dispatch proto base"

    # --- third party: header pattern, files that may include it ---
    third("^jansson[.]h$", "^base/rk_json[.]c$")
    third("^openssl/(crypto|evp|hmac)[.]h$", "^base/rk_hash[.]c$")
    third("^openssl/", "^base/rk_(tls|certs)[a-z_]*[.][ch]$")
    third("^protobuf-c/", "^(proto|tests)/")
    third("^grpc/", "^(proto/stream[.]c|daemon/|driver-cli/|tests/|bench/)")
    third("^(cblas|openblas_config)[.]h$", "^(kernels/cpu|bench)/")
    third("^omp[.]h$", "^(kernels/cpu|bench)/")
    third("^(algorithm|cstring|functional|vector)$", "^bench/lab/")
    third("^(cuda|cublas|curand|cub/|cooperative_groups|mma)", "^(kernels/cuda/|bench/)")
    third("^uv[.]h$", "^daemon/")
    third("^systemd/", "^daemon/")
    third("^microhttpd[.]h$", "^daemon/metrics_http[.]c$")
    third("^curl/", "^driver-cli/driver/rewards/reward_http[.]c$")
    third("^pcre2[.]h$", "^driver-cli/driver/(tokenizer/|rewards/reward_regex[.]c$)")
    third("^utf8proc[.]h$", "^driver-cli/driver/(chat/|tokenizer/|rewards/reward_exact[.]c$)")
    third("^cmocka[.]h$", "^tests/")
    third("^(ucontext[.]h$|sanitizer/)", "^tests/unit/sim/")

    # --- headers of the C library and the kernel that anybody may include ---
    libc = "^((sys|linux|arpa|net|netinet)/[a-z0-9_]+|assert|ctype|dirent|dlfcn|endian|errno|execinfo|fcntl|fenv|" \
        "float|fnmatch|ftw|getopt|glob|inttypes|limits|link|locale|malloc|math|netdb|poll|pthread|pty|pwd|sched|" \
        "semaphore|setjmp|signal|spawn|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|" \
        "strings|termios|threads|time|unistd|wchar|wctype)[.]h$"
    libcpp = "^c?(std[a-z]+|math|float|limits)([.]h)?$"
}

function third(header, files) {
    third_header[++num_third] = header
    third_files[num_third] = files
}

function report(message) {
    printf "%s:%d: %s\n", file, line_number, message
    failed = 1
}

function exists(path,    discard, result) {
    if (!(path in known)) {
        result = (getline discard < path)
        known[path] = (result >= 0)
        close(path)
    }
    return known[path]
}

function module_of(path) {
    return substr(path, 1, index(path, "/") - 1)
}

function check_quoted(header,    target, is_own_test) {
    if (header ~ /[.]pb-c[.]h$/) { # generated into the build folder
        if (module != "proto" && module != "tests")
            report("generated header \"" header "\" belongs to proto")
        return
    }
    if (header ~ /^generated[/]/) # by the build, for all (cmake/generate.cmake)
        return
    if (index(header, "/") == 0 || !exists(header)) {
        report("\"" header "\" is not a header of the project, named from its root")
        return
    }
    target = module_of(header)
    if (index(" " allowed[module] " ", " " target " ") == 0)
        report(module " may not include " target " (\"" header "\")")
    is_own_test = (index(file, "tests/unit/" target "/") == 1 || index(file, "tests/unit/sim/") == 1 || \
        index(file, "tests/fuzz/") == 1)
    if (header ~ /_internal[.]h$/ && target != module && !is_own_test)
        report("\"" header "\" is private to " target)
}

function check_angled(header,    i) {
    for (i = 1; i <= num_third; i++) {
        if (header ~ third_header[i]) {
            if (file !~ third_files[i])
                report("<" header "> is third party and not allowed here")
            return
        }
    }
    if (header !~ libc && !(file ~ /[.](cu|cuh|cc)$/ && header ~ libcpp))
        report("<" header "> is unknown; add it to tools/check_includes.sh with the files that may include it")
}

{
    file = $0
    module = module_of(file)
    own = file
    own_is_checked = !sub(/[.](c|cc|cu)$/, ".h", own) || !exists(own)
    line_number = 0
    if (!(module in allowed)) {
        report("no module \"" module "\" in tools/check_includes.sh")
        next
    }
    while ((getline line < file) > 0) {
        line_number++
        if (line !~ /^[ \t]*#[ \t]*include[ \t]*["<]/)
            continue
        header = line
        sub(/^[^"<]*["<]/, "", header)
        sub(/[">].*$/, "", header)
        if (!own_is_checked && header != own)
            report("\"" own "\" must be included first")
        own_is_checked = 1
        if (line ~ /include[ \t]*"/)
            check_quoted(header)
        else
            check_angled(header)
    }
    close(file)
}

END { exit failed }
'
