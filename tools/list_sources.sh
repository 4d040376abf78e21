#!/bin/sh
# Prints the project's C, C++ and CUDA sources, tracked or untracked (but not ignored), one per line, relative to the
# root.
# Usage: tools/list_sources.sh [SUFFIX...]     default: c h cc cu cuh
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- c h cc cu cuh
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    for suffix in "$@"; do
        git ls-files --cached --others --exclude-standard -- "*.$suffix"
    done
else # an unpacked archive
    for suffix in "$@"; do
        find . -path ./build -prune -o -name "*.$suffix" -print | sed 's|^\./||'
    done
fi | sort -u | while IFS= read -r file; do
    if [ -f "$file" ]; then
        printf '%s\n' "$file"
    fi
done
