# The rules of check_banned.sh. Input: names of source files, one per line.
BEGIN {
    # --- function names, files that may call them ("" for none), what to use instead ---
    ban("strcpy|strcat|stpcpy|sprintf|vsprintf|gets", "", "rk_str_append, rk_format or snprintf")
    ban("strtok", "", "strsep or strcspn")
    ban("atoi|atol|atoll|atof", "", "rk_parse_i64, rk_parse_f64")
    ban("alloca", "", "an array of fixed size or an arena")
    ban("rand|srand|random|drand48", "", "rk_rng")
    ban("malloc|calloc|realloc|reallocarray|free|strdup|strndup|asprintf|vasprintf", "^base/",
        "rk_malloc, rk_try_alloc, rk_free, rk_strdup, rk_format")
    ban("getenv|secure_getenv", "^base/rk_env[.]c$", "rk_env")
    ban("printf|vprintf|puts|putchar", "^(cmd/|daemon/main[.]c$|tests/|bench/|examples/)", "the log or a returned text")
    ban("getaddrinfo|gethostbyname|gethostbyname2", "^(base/net/rk_net[.]c$|tests/)", "rk_net_resolve, which knows localhost")
    ban("exit", "^(cmd/|daemon/main[.]c$|tests/|bench/|examples/)", "a status")
    ban("skip|_skip", "^(engine/|tests/support/test[.]c$)", "rk_test_skip, which gives a reason")
    ban("cudaMalloc", "^(kernels/cuda/device_cuda[.]c$|bench/lab/)", "rk_device")
    ban("cudaDeviceSynchronize", "^bench/", "a stream or an event")
}

function ban(names, files, instead) {
    pattern[++num_bans] = "(^|[^A-Za-z0-9_.>])(" names ")[ \t]*[(]"
    allowed_files[num_bans] = files
    advice[num_bans] = instead
}

function report(message) {
    printf "%s:%d: %s\n", file, line_number, message
    failed = 1
}

{
    file = $0
    line_number = 0
    in_comment = 0
    while ((getline line < file) > 0) {
        line_number++
        if (line ~ /(^|[^A-Za-z])(TODO|FIXME)([^A-Za-z]|$)/)
            report("a TODO is not committed; open an issue")
        code = strip(line)
        for (i = 1; i <= num_bans; i++) {
            if (code !~ pattern[i] || (allowed_files[i] != "" && file ~ allowed_files[i]))
                continue
            match(code, pattern[i])
            name = substr(code, RSTART, RLENGTH)
            gsub(/[^A-Za-z0-9_]/, "", name)
            report(name "() is banned here; use " advice[i])
        }
    }
    close(file)
}

END { exit failed }
