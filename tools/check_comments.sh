#!/bin/sh
# Checks that no comment in front of a declaration or statement begins without a noun ("Of the step", "The same for ..."):
# a reader would have to guess what it speaks of. The rule is in tools/comments.awk. Prints FILE:LINE: MESSAGE for each
# violation and exits 1.
set -eu
cd "$(dirname "$0")/.."

found=$(tools/list_sources.sh c h cu cuh def | xargs awk -f tools/comments.awk)
[ -z "$found" ] || printf '%s\n' "$found"
[ -z "$found" ]
