#!/bin/sh
# Hard limits: length of lines, functions and files, number of parameters, depth of nesting. The numbers are in
# tools/sizes.awk. Prints FILE:LINE: MESSAGE for each violation and exits 1.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | awk -f tools/strip_code.awk -f tools/sizes.awk
