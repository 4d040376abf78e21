#!/bin/sh
# check_docs.sh [FOLDER]: checks statements of the documentation about the tree:
#   - relative links of every page refer to an existing file;
#   - README.md links to every page of docs/;
#   - sources that pages of docs/ name by path exist, and identifiers of rankd are used in the sources;
#   - internal headers that pages and comments name exist;
#   - losses, estimators, rewards, loggers and families are named by the page that describes them;
#   - no two decisions of docs/adr have the same number;
#   - every script has its run bit, as pages call them;
#   - pages call pip only in a virtual environment, because Debian's refuses to install outside of one;
#   - every RPC of the .proto files is served (a row of proto/rpcs.def), or the line above it says UNIMPLEMENTED;
#   - the table of errors in docs/rpc.md has exactly the reasons in the sources.
# For a FOLDER of installed pages, checks only the links. Prints FILE: MESSAGE for each violation and exits 1.
set -eu
cd "${1:-$(dirname "$0")/..}"
problems=$(mktemp)
trap 'rm -f "$problems"' EXIT

# Prints FILE TARGET for each Markdown link that is neither a URL nor an anchor in the same page.
links() {
    awk '{
        while (match($0, /\]\([^)]*\)/)) {
            target = substr($0, RSTART + 2, RLENGTH - 3)
            $0 = substr($0, RSTART + RLENGTH)
            sub(/#.*/, "", target)
            if (target != "" && target !~ /^[a-z]+:/)
                print FILENAME, target
        }
    }' "$@"
}

pages=$(find . -name '*.md' -not -path './build/*' -not -path './.*' | sed 's|^\./||')
# shellcheck disable=SC2086 # words
links $pages | while read -r page target; do
    [ -e "$(dirname "$page")/$target" ] || echo "$page: the link '$target' leads nowhere"
done >>"$problems"

if [ $# -gt 0 ]; then
    cat "$problems"
    [ ! -s "$problems" ]
    exit
fi

for page in docs/*.md; do
    links README.md | grep -qxF "README.md $page" || echo "README.md: does not lead to $page"
done >>"$problems"

# Prints PAGE WORD for each word of that pattern in the inline code of the pages of docs/.
code_words() {
    for page in docs/*.md docs/adr/*.md; do
        grep -oE '`[^`]*`' "$page" | grep -oE "$1" | sort -u | sed "s|^|$page |"
    done
}

code_words '\b(base|proto|kernels|engine|dispatch|worker|daemon|text|driver|rl|cmd|tools|tests)(/[a-z0-9_.]+)*/[a-z0-9_]+\.[a-z]+\b' |
    while read -r page path; do
        [ -e "$path" ] || echo "$page: names $path, which does not exist"
    done >>"$problems"

known=$(mktemp)
find base proto kernels engine dispatch worker daemon text driver rl cmd clients examples bench tests \
    \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name '*.py' \) -exec cat {} + |
    grep -oE '\b(rk|RK)_[A-Za-z0-9_]+' | sort -u >"$known"
code_words '\b(rk|RK)_[A-Za-z0-9_]*[A-Za-z0-9]\b' |
    awk 'NR == FNR { known[$0]; next } !($2 in known) { print $1 ": names " $2 ", which no source has" }' "$known" - >>"$problems"

# Internal headers, by their names alone.
find base proto kernels engine dispatch worker daemon text driver rl cmd bench tests -name '*_internal.h' |
    sed 's|.*/||' >"$known"
grep -rnoE '[a-z][a-z0-9_]*_internal\.h' docs CONTRIBUTING.md base proto kernels engine dispatch worker daemon text driver rl cmd \
    --include='*.md' --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.def' |
    awk -F: 'NR == FNR { known[$0]; next } !($3 in known) { print $1 ":" $2 ": names " $3 ", which does not exist" }' "$known" - \
        >>"$problems"
rm -f "$known"

# described PAGE LIST: the page has the name of every row X(NAME of the list.
described() {
    sed -nE "s/^ *X\((sum_)?([a-z][a-z0-9_]*)[,)].*/\\2/p" "$2" | while read -r name; do
        grep -qwF "$name" "$1" || echo "$1: lacks $name of $2"
    done
}
{
    described docs/algorithms.md base/config/losses.def
    described docs/algorithms.md rl/algo/advantages.def
    described docs/rewards.md rl/rewards/rewards.def
    described docs/logging.md rl/loggers/loggers.def
    described docs/models.md base/format/families.def
} >>"$problems"

find docs/adr -name '*.md' | sed 's|.*/||; s/-.*//' | sort | uniq -d | sed 's/^/docs\/adr: two pages have the number /' >>"$problems"

# shellcheck disable=SC2086 # words
grep -nE '(^|[$;&|] ?)(python3 -m pip|pip3?) install' $pages | cut -d: -f1,2 |
    sed 's/$/: calls pip of the system, expected that of a virtual environment/' >>"$problems"

find . -name '*.sh' -not -path './build/*' -not -path './.*' -not -perm -u+x |
    sed 's|^\./\(.*\)|\1: has no run bit (git update-index --chmod=+x)|' >>"$problems"

awk '
    /^package / { package = $2; sub(/;/, "", package) }
    /^service / { service = $2 }
    /^ *rpc / && before !~ /UNIMPLEMENTED/ { name = $2; sub(/\(.*/, "", name); print "/" package "." service "/" name }
    { before = $0 }' proto/rankd/v1/*.proto | while read -r path; do
    grep -qF "\"$path\"" proto/rpcs.def || echo "proto/rankd/v1: $path is in no row of proto/rpcs.def"
done >>"$problems"

sources=$(find base proto kernels engine dispatch worker daemon text driver rl cmd -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
# The second argument of RK_FAIL_REASON, on any line.
# shellcheck disable=SC2086 # words
used=$(cat $sources | awk '
    { text = text " " $0 }
    NR % 1000 == 0 { scan() }
    END { scan() }
    function scan() {
        while (match(text, /RK_FAIL_REASON\([^"]*"[A-Z_]+"/)) {
            call = substr(text, RSTART, RLENGTH)
            text = substr(text, RSTART + RLENGTH)
            gsub(/^[^"]*"|"$/, "", call)
            print call
        }
        text = substr(text, length(text) > 500 ? length(text) - 500 : 1)
    }' | sort -u)
named=$(awk -F'|' '/^\| code \|/ { in_table = 1; next } !/^\|/ { in_table = 0 } in_table { print $3 }' docs/rpc.md |
    tr -c 'A-Z_\n' '\n' | grep -E '^[A-Z][A-Z_]+$' | sort -u)
for reason in $used; do
    echo "$named" | grep -qx "$reason" || echo "docs/rpc.md: lacks the reason $reason"
done >>"$problems"
for reason in $named; do
    # shellcheck disable=SC2086 # words
    grep -qF "\"$reason\"" $sources || echo "docs/rpc.md: no source gives the reason $reason"
done >>"$problems"

cat "$problems"
[ ! -s "$problems" ]
