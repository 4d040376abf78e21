#!/bin/sh
# Rejects calls of functions that have a safer or more traceable replacement in this project, and
# TODO comments (use an issue instead). The rules are in tools/banned.awk. Prints FILE:LINE: MESSAGE
# for each violation and exits 1.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | awk -f tools/strip_code.awk -f tools/banned.awk
