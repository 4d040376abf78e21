#!/bin/sh
# test_rpath.sh BUILD_DIR: goal: no program or library searches for libraries in the current
# directory. Method: no program or library has a run path with an empty element (the loader takes it
# for "."), or one that is not absolute.
set -eu

files=0
failed=0
for file in "$1"/bin/* "$1"/lib/*.so "$1"/tests/*; do
    path=$(readelf --dynamic "$file" 2>/dev/null | sed -n 's/.*Library r[a-z]*path: \[\(.*\)\]/\1/p')
    [ -n "$path" ] || continue
    files=$((files + 1))
    if printf '%s\n' "$path" | tr : '\n' | grep -qvE '^(/|\$ORIGIN/)'; then
        echo "$file: run path '$path' has elements that are not absolute"
        failed=1
    fi
done
echo "looked at $files files"
[ "$files" -gt 0 ] && [ "$failed" -eq 0 ]
