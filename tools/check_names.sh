#!/bin/sh
# Checks that names are unique: a tag of a struct, enum or union, or a function that is not static,
# is defined in only one file of the tree, even if two files are never linked together, so that a
# name is unambiguous for readers and debuggers. The rules are in tools/names.awk. Prints FILE:LINE:
# MESSAGE for each violation and exits 1. Tests are not checked.
set -eu
cd "$(dirname "$0")/.."

tools/list_sources.sh | grep -v '^tests/' | awk -f tools/strip_code.awk -f tools/names.awk
