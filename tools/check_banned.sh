#!/bin/sh
# Refuses calls of functions that have a safer or a more traceable form in this project, and TODO comments (what is
# missing is an issue). The rules are in tools/banned.awk. Prints FILE:LINE: MESSAGE for each violation and exits 1.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | awk -f tools/strip_code.awk -f tools/banned.awk
