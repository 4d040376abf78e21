#!/bin/sh
# Checks the sources against .clang-format. Prints clang-format's complaints and exits 1. Versions
# other than the tree's format slightly differently: without that one it exits with 77.
set -eu
cd "$(dirname "$0")/.."
version=14

for program in clang-format-$version clang-format; do
    if command -v "$program" >/dev/null 2>&1 && "$program" --version | grep -q "version $version\."; then
        tools/list_sources.sh c h | xargs "$program" --dry-run -Werror
        exit 0
    fi
done
echo "skipped: clang-format $version is not installed"
exit 77
