# Common code of the lint scripts: strip(line) returns the code of a line, with comments removed and
# string and character literals emptied. Keeps the state of a block comment between lines; reset by
# `in_comment = 0`.
function strip(line,    out, c, two, quote) {
    out = ""
    while (line != "") {
        two = substr(line, 1, 2)
        c = substr(line, 1, 1)
        if (in_comment) {
            if (two == "*/") {
                in_comment = 0
                line = substr(line, 3)
            } else {
                line = substr(line, 2)
            }
        } else if (two == "/*") {
            in_comment = 1
            line = substr(line, 3)
        } else if (two == "//") {
            line = ""
        } else if (c == "\"" || c == "'") {
            quote = c
            line = substr(line, 2)
            while (line != "" && substr(line, 1, 1) != quote)
                line = substr(line, substr(line, 1, 1) == "\\" ? 3 : 2)
            line = substr(line, 2)
            out = out quote quote
        } else {
            out = out c
            line = substr(line, 2)
        }
    }
    return out
}
