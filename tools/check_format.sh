#!/bin/sh
# Checks the sources against .clang-format. Prints what clang-format complains about and exits 1. Other versions than
# the one the tree is formatted with disagree in details, so they are not asked.
set -eu
cd "$(dirname "$0")/.."
version=14

for program in clang-format-$version clang-format; do
    if command -v "$program" >/dev/null 2>&1 && "$program" --version | grep -q "version $version\."; then
        tools/list_sources.sh c h | xargs "$program" --dry-run -Werror
        exit 0
    fi
done
echo "check_format: clang-format $version is not installed; skipped"
