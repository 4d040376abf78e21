# Finds names that two files define (tools/check_names.sh). Needs strip() of tools/strip_code.awk; reads the list
# of files from its input.

# Reports a definition of `kind` `name` unless the same file has defined it before, for example
# under another #if.
function defines(kind, name,    key) {
    key = kind " " name
    if (!(key in first_file)) {
        first_file[key] = file
        first_line[key] = line_number
    } else if (first_file[key] != file) {
        printf "%s:%d: %s is defined in %s:%d too; name one of them after what makes it another thing\n", file,
            line_number, key, first_file[key], first_line[key]
        failed = 1
    }
}

# Tags without the prefix are private to a source file; only these may be defined in several source
# files.
function check_tag(code,    words) {
    sub(/^typedef[ \t]+/, "", code)
    split(code, words, /[ \t{]+/)
    if (words[2] ~ /^rk_/ || file ~ /[.](h|cuh)$/)
        defines(words[1], words[2])
}

# Exempt: main, definitions made by macros, and names without the prefix in CUDA sources, which are
# in an anonymous namespace.
function is_private(name) {
    return name == "main" || name ~ /^[A-Z_0-9]+$/ || (name !~ /^rk_/ && file ~ /[.]cuh?$/)
}

# A definition begins in column 1 with its name on the line, and has a `{` before any `;`.
function check_function(code,    name) {
    if (code ~ /^[A-Za-z_]/ && code !~ /^(static|typedef)([^A-Za-z_0-9]|$)/ &&
        match(code, /[A-Za-z_0-9]+[ \t]*[(]/)) {
        name = substr(code, RSTART, RLENGTH)
        sub(/[ \t]*[(]$/, "", name)
        pending = is_private(name) ? "" : name
        pending_text = ""
    }
    if (pending == "")
        return
    pending_text = pending_text code
    if (pending_text ~ /[;]/) {
        pending = ""
    } else if (pending_text ~ /[{]/) {
        defines("function", pending)
        pending = ""
    }
}

{
    file = $0
    line_number = 0
    in_comment = 0
    pending = ""
    while ((getline line < file) > 0) {
        line_number++
        code = strip(line)
        if (code ~ /^#/)
            continue
        if (code ~ /^(typedef[ \t]+)?(struct|enum|union)[ \t]+[a-z_0-9]+[ \t]*[{]/)
            check_tag(code)
        else
            check_function(code)
    }
    close(file)
}

END { exit failed }
