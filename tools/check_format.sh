#!/bin/sh
# Checks the sources against .clang-format. Prints what clang-format complains about and exits 1.
set -eu
cd "$(dirname "$0")/.."

if ! command -v clang-format >/dev/null 2>&1; then
    echo "check_format: clang-format is not installed; skipped"
    exit 0
fi
tools/list_sources.sh c h | xargs clang-format --dry-run -Werror
