#!/bin/sh
# One name, one thing: a tag of a struct, enum or union, or a function that is not static, is defined in one file of
# the tree. Two files that are never linked together count too: a reader and a debugger have one name for both.
# The rules are in tools/names.awk. Prints FILE:LINE: MESSAGE for each violation and exits 1. Tests are not checked.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | grep -v '^tests/' | awk -f tools/strip_code.awk -f tools/names.awk
