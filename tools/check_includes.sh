#!/bin/sh
# Checks every #include against the module table below (docs/architecture.md has it as a diagram):
#   - a module includes only public headers of the modules in its row, and no private header of another module (a
#     module's unit tests, the simulation, the fuzz targets, bench/lab and the templates of CONTRIBUTING.md may);
#   - a header *_internal.h is included in its own folder, and in folders below it, only; a header of a module for its
#     other folders has no prefix and no suffix (rl/data/messages.h), one for other modules the prefix rk_ (all headers
#     of proto are for other modules);
#   - project headers are included by their path from the root and exist; a source includes its own header first;
#   - a third-party header is included only in the files listed for its library.
# Prints FILE:LINE: MESSAGE for each violation and exits 1.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | awk '
BEGIN {
    # --- allowed includes between modules; tests and benchmarks may include everything ---
    allowed["base"] = "base"
    allowed["base/layout"] = "base/layout base"
    allowed["base/math"] = "base/math base"
    allowed["base/config"] = "base/config base/math base"
    allowed["base/format"] = "base/format base"
    allowed["base/net"] = "base/net base"
    all_base = " base base/layout base/math base/config base/format base/net"
    allowed["proto"] = "proto" all_base
    allowed["kernels"] = "kernels" all_base
    # The folders of the engine, lowest first: each may include those before it. Public headers are in engine itself.
    below = "engine kernels" all_base
    num_folders = split("tensor comm mesh params nn model loss pipeline optim ckpt reshard rollout memory", folder, " ")
    for (i = 1; i <= num_folders; i++) {
        below = below " engine/" folder[i]
        allowed["engine/" folder[i]] = below
    }
    allowed["engine"] = below
    allowed["dispatch"] = "dispatch proto" all_base
    allowed["worker"] = "worker dispatch engine kernels proto" all_base
    allowed["daemon"] = "daemon worker dispatch proto" all_base
    allowed["text"] = "text" all_base
    allowed["driver"] = "driver dispatch proto" all_base
    allowed["rl"] = "rl driver text dispatch proto" all_base
    allowed["cmd"] = "cmd rl driver text dispatch proto" all_base
    everything = "proto kernels dispatch worker daemon text driver rl cmd " below
    allowed["tests"] = "tests " everything
    allowed["bench"] = "bench " everything
    allowed["examples"] = "driver text rl dispatch proto" all_base

    # --- third party: header pattern, files that may include it ---
    third("^jansson[.]h$", "^base/rk_json[.]c$")
    third("^openssl/(crypto|evp|hmac)[.]h$", "^base/rk_hash[.]c$")
    third("^openssl/", "^base/net/rk_(tls|certs)[a-z_]*[.][ch]$")
    third("^protobuf-c/", "^tests/")
    third("^grpc/", "^(proto/stream[.]c|daemon/|driver/|tests/|bench/)")
    third("^(cblas|openblas_config)[.]h$", "^(kernels/cpu|bench)/")
    third("^omp[.]h$", "^(kernels/cpu|bench)/")
    third("^(algorithm|cstring|functional|vector)$", "^bench/lab/")
    third("^(cuda|cublas|curand|cub/|cooperative_groups|mma)", "^(kernels/cuda/|bench/)")
    third("^uv[.]h$", "^daemon/")
    third("^systemd/", "^daemon/")
    third("^microhttpd[.]h$", "^daemon/metrics/metrics_http[.]c$")
    third("^curl/", "^rl/rewards/reward_http[.]c$")
    third("^pcre2[.]h$", "^(text/tokenizer/|rl/rewards/reward_regex[.]c$)")
    third("^utf8proc[.]h$", "^(text/|rl/rewards/reward_exact[.]c$)")
    third("^(zlib|zstd|lz4|snappy-c|brotli/decode)[.]h$", "^rl/data/parquet/compress[.]c$")
    third("^cmocka[.]h$", "^tests/")
    third("^(ucontext[.]h$|sanitizer/)", "^tests/unit/sim/")

    # --- headers of the C library and the kernel that all files may include ---
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

# A folder of base or engine has a row of its own.
function module_of(path) {
    if (match(path, /^(base|engine)[/][a-z]+[/]/))
        return substr(path, 1, RLENGTH - 1)
    return substr(path, 1, index(path, "/") - 1)
}

function top(module) {
    sub(/[/].*/, "", module)
    return module
}

function folder_of(path) {
    sub(/[^\/]*$/, "", path)
    return path
}

function check_quoted(header,    target, is_own_test) {
    if (header ~ /[.]pb-c[.]h$/) { # generated into the build directory
        if (module != "tests")
            report("generated header \"" header "\" belongs to tests")
        return
    }
    if (header ~ /^generated[/]/) # generated by the build for all modules (cmake/generate.cmake)
        return
    if (index(header, "/") == 0 || !exists(header)) {
        report("\"" header "\" is not a header of the project, named from its root")
        return
    }
    target = module_of(header)
    if (index(" " allowed[module] " ", " " target " ") == 0)
        report(module " may not include " target " (\"" header "\")")
    is_own_test = (index(file, "tests/unit/" top(target) "/") == 1 || index(file, "tests/unit/sim/") == 1 || \
        index(file, "tests/fuzz/") == 1 || index(file, "tests/scripts/contributing/") == 1 || \
        index(file, "bench/lab/") == 1)
    if (is_own_test)
        return
    if (top(target) != top(module) && target != "proto" && header !~ /([/]rk_[a-z0-9_]+[.]h|[.]def)$/)
        report("\"" header "\" is private to " target)
    else if (header ~ /_internal[.]h$/ && index(file, folder_of(header)) != 1)
        report("\"" header "\" is private to the folder " folder_of(header))
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
