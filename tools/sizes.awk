# The rules of check_sizes.sh, for code in the project's format (tools/check_format.sh): a function's braces stand
# alone in column 1, and statements are indented by four a level. Input: names of source files, one
# per line.
BEGIN {
    MAX_COLUMNS = 110
    MAX_SOURCE_LINES = 900
    MAX_HEADER_LINES = 600
    MAX_FUNCTION_LINES = 80
    MAX_LONG_FUNCTION_LINES = 150 # with a comment "RK_LINT_LONG: reason" above or inside
    MAX_PARAMETERS = 7 # unless a comment "RK_LINT_FOREIGN: library" above names the library whose callback it is
    MAX_NESTING = 4
}

function report(at, message) {
    printf "%s:%d: %s\n", file, at, message
    failed = 1
}

# Parameters of the signature: what is between the last pair of outermost parentheses. The arguments of templates
# are not counted.
function count_parameters(text,    i, c, depth, commas, content) {
    gsub(/<[^<>()]*>/, "", text)
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "(" && depth++ == 0) {
            commas = 0
            content = ""
        } else if (c == ")") {
            depth--
        } else if (c == "," && depth == 1) {
            commas++
        } else if (depth > 0) {
            content = content c
        }
    }
    gsub(/[ \t]/, "", content)
    return content == "" || content == "void" ? 0 : commas + 1
}

# The name before the last outermost parenthesis, for messages.
function function_name(text) {
    sub(/[(].*$/, "", text)
    gsub(/[ \t]+$/, "", text)
    sub(/^.*[ \t*]/, "", text)
    return text
}

function end_function(    length_lines, limit) {
    length_lines = line_number - signature_line + 1
    limit = is_long ? MAX_LONG_FUNCTION_LINES : MAX_FUNCTION_LINES
    if (length_lines > limit)
        report(signature_line, function_name(signature) "() has " length_lines " lines, the limit is " limit)
    in_function = 0
    is_long = is_foreign = 0
    signature = ""
}

function check_code(code,    indent) {
    if (in_function) {
        match(code, /^ */)
        indent = RLENGTH
        if (code ~ /^ *(if|for|while|switch|do)([ (]|$)/ && indent > 4 * MAX_NESTING)
            report(line_number, "nested deeper than " MAX_NESTING)
        if (code == "}")
            end_function()
        return
    }
    if (code == "{") {
        in_function = 1
        if (count_parameters(signature) > MAX_PARAMETERS && !is_foreign)
            report(signature_line, function_name(signature) "() has more than " MAX_PARAMETERS \
                   " parameters; use an args struct")
        return
    }
    if (code ~ /^[A-Za-z_]/ && code !~ /;[ \t]*$/) { # may begin a signature
        signature = code
        signature_line = line_number
    } else if (code ~ /^[ \t]/ && signature != "") {
        signature = signature " " code
    } else if (code != "") {
        signature = ""
    }
    if (code ~ /[;}][ \t]*$/) {
        signature = ""
        is_long = is_foreign = 0
    }
}

{
    file = $0
    line_number = 0
    in_comment = in_function = is_long = is_foreign = 0
    signature = ""
    while ((getline line < file) > 0) {
        line_number++
        if (length(line) > MAX_COLUMNS)
            report(line_number, "line of " length(line) " columns, the limit is " MAX_COLUMNS)
        if (line ~ /RK_LINT_LONG: ./)
            is_long = 1
        if (line ~ /RK_LINT_FOREIGN: ./)
            is_foreign = 1
        code = strip(line)
        sub(/[ \t]+$/, "", code)
        if (code !~ /^#/)
            check_code(code)
    }
    close(file)
    limit = file ~ /[.](h|cuh)$/ ? MAX_HEADER_LINES : MAX_SOURCE_LINES
    if (line_number > limit)
        report(1, "file of " line_number " lines, the limit is " limit)
}

END { exit failed }
