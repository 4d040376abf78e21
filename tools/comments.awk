# Reads sources, prints FILE:LINE: MESSAGE for comments that stand alone in front of what they describe and begin without
# a noun. Comments behind code continue the name before them ("bytes; /* of the file */") and are not checked.
FNR == 1 { in_comment = 0 }
!in_comment && /^[ \t]*\/\*/ {
    in_comment = 1
    text = ""
    start = FNR
    sub(/^[ \t]*\/\*+[ \t]*/, "")
}
in_comment {
    sub(/^[ \t]*\*+ /, "")
    text = text (text == "" ? "" : " ") $0
    if ($0 ~ /\*\//) {
        in_comment = 0
        sub(/[ \t]*\*\/.*/, "", text)
        if (text ~ /^(Of|Those|Which|Whose|That of|It|They) / ||
            text ~ /^The same([,.;:]|$| (in|for|of|as|and|or|but|to|with|without|because|two|by|at|on|here|from|when|if|that)([ ,.]|$))/) {
            printf "%s:%d: the comment begins with '%s': begin with the noun that it describes\n", FILENAME, start,
                substr(text, 1, 30)
        }
    }
}
