#!/bin/sh
# test_manual.sh BUILD_DIR: goal: manual pages have every command, option and key, and groff reports
# no errors; the completions offer the right words at every position of a command line, in bash and,
# if installed, in zsh. Method: the pages against --help of the programs; the functions run with
# command lines as a shell hands them in.
set -eu
build=$1
manual=$build/manual
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_manual: $*"
    exit 1
}

# --- pages ---
if command -v groff >/dev/null; then
    for page in "$manual"/*.[158]; do
        groff -man -ww -rLL=78n -z -Tutf8 "$page" 2>"$work/warnings" || fail "groff refuses $page"
        [ ! -s "$work/warnings" ] || {
            cat "$work/warnings"
            fail "$page has warnings"
        }
    done
else
    echo "groff is not installed; pages are not formatted"
fi
plain() { sed 's/\\:\|\\&//g; s/\\-/-/g' "$manual/$1"; }

"$build/bin/rankctl" --help | sed -n '/^commands:/,/^$/s/^  \([a-z -]*[a-z]\)  .*/\1/p' >"$work/commands"
[ "$(wc -l <"$work/commands")" -ge 15 ] || fail "too few commands in the overview"
plain rankctl.1 >"$work/rankctl.1"
while read -r command; do
    grep -q "^\.SS \"rankctl $command \[options\]" "$work/rankctl.1" || fail "rankctl.1 has no command '$command'"
    # shellcheck disable=SC2086 # two words
    "$build/bin/rankctl" $command --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' >"$work/options"
    while read -r option; do
        grep -q "^\\\\fB$option[=\\\\]" "$work/rankctl.1" || fail "rankctl.1 has no option '$option'"
    done <"$work/options"
done <"$work/commands"

plain rankd-bench.1 >"$work/rankd-bench.1"
"$build/bin/rankd-bench" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' >"$work/options"
[ "$(wc -l <"$work/options")" -ge 8 ] || fail "too few options in 'rankd-bench --help'"
while read -r option; do
    grep -q "^\\\\fB$option[=\\\\]" "$work/rankd-bench.1" || fail "rankd-bench.1 has no option '$option'"
done <"$work/options"

"$build/bin/rankctl" run --help | sed -n 's/^  \([a-z0-9_.]*\) (.*/\1/p' >"$work/keys"
[ "$(wc -l <"$work/keys")" -ge 250 ] || fail "too few keys in 'rankctl run --help'"
plain rankd-job.5 | sed -n 's/^\\fB\(.*\)\\fR$/\1/p' | cmp - "$work/keys" || fail "rankd-job.5 has other keys"
"$build/bin/rankd" --help | sed -n 's/^\([a-z0-9_.]*\) (.*/\1/p' >"$work/keys"
[ "$(wc -l <"$work/keys")" -ge 20 ] || fail "too few keys in 'rankd --help'"
plain rankd.conf.5 | sed -n 's/^\\fB\(.*\)\\fR$/\1/p' | cmp - "$work/keys" || fail "rankd.conf.5 has other keys"

# --- bash ---
cd "$work"
mkdir -p jobs
echo '{}' >jobs/train.json
cat >check.bash <<'END'
set -u
failed=0
compopt() { :; } # only works in a completion
# LINE and the words that must be among the candidates; "!" marks words that must not be.
expect() {
    local line=$1 word
    shift
    COMP_LINE=$line COMP_POINT=${#line} COMPREPLY=()
    "_${line%% *}"
    for word; do
        case " ${COMPREPLY[*]} " in
        *" ${word#!} "*) [ "$word" = "${word#!}" ] || { echo "'$line' offers '${word#!}'"; failed=1; } ;;
        *) [ "$word" != "${word#!}" ] || { echo "'$line' does not offer '$word': ${COMPREPLY[*]:0:20}"; failed=1; } ;;
        esac
    done
}
expect 'rankctl ' run plan call checkpoint certs completion '!save'
expect 'rankctl ch' checkpoint '!run'
expect 'rankctl checkpoint ' save load list '!run'
expect 'rankctl checkpoint s' save '!load'
expect 'rankctl run --' --local= --hosts= --quiet --help '!--force'
expect 'rankctl checkpoint save --' --role= --hosts= '!--local='
expect 'rankctl run --output=' table json
expect 'rankctl run --output ' table json
expect 'rankctl run --output=j' json '!table'
expect 'rankctl run jobs/t' jobs/train.json
expect 'rankctl run --run-dir=jobs/t' jobs/train.json
expect 'rankctl run --local 2 jobs/train.json data.tr' data.train_files= data.train_batch_size= '!data.seed='
expect 'rankctl run jobs/train.json numerics=' fast strict
expect 'rankctl run jobs/train.json critic.enable=t' true '!false'
expect 'rankctl call actor.update_' actor.update_actor '!critic.update_critic'
expect 'rankctl call actor.update_actor --opt cl' clip_ratio= '!loss_agg_mode='
expect 'rankctl call actor.update_actor --opt=cl' clip_ratio=
expect 'rankctl describe gen' generate_sequences
expect 'rankctl completion ' bash zsh
expect 'rankctl config ' check show
expect 'rankctl config check jobs/train.json trainer.total_e' trainer.total_epochs=
expect 'rankctl nonsense ' '!run'
expect 'rankd --' --config= --rpc.listen= --check-config
expect 'rankd --log.level=' debug info
expect 'rankd --rpc.insecure=' true false
expect 'rankd --config=jobs/t' jobs/train.json
exit $failed
END
cat "$manual/rankctl.bash" "$manual/rankd.bash" check.bash >all.bash
bash all.bash || fail "the completions for bash"
"$build/bin/rankctl" completion bash | cmp - "$manual/rankctl.bash"

# --- zsh: candidates come from the same functions ---
if command -v zsh >/dev/null; then
    cat >check.zsh <<'END'
compdef() { [ "$1 $2" = "_rankctl rankctl" ] || [ "$1 $2" = "_rankd rankd" ] || exit 1; }
. $1/rankctl.zsh
. $1/rankd.zsh
[ "$(_rankctl_candidates --output= status)" = "--output=table
--output=json" ] || exit 1
_rankctl_candidates '' checkpoint | grep -qx save || exit 1
_rankctl_candidates data.tr run jobs/train.json | grep -qx data.train_files= || exit 1
[ "$(_rankctl_candidates numerics= run jobs/train.json)" = "numerics=fast
numerics=strict" ] || exit 1
[ "$(_rankd_values --log.level)" = "debug info warn error" ] || exit 1
END
    zsh -f check.zsh "$manual" || fail "the completions for zsh"
else
    echo "zsh is not installed; its completions are not run"
fi
