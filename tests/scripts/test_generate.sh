#!/bin/sh
# test_generate.sh CMAKE SOURCE: goal: the output of cmake/generate.cmake depends on the commit and
# the headers, and is not rewritten when neither has changed. Method: a temporary repository. Exits
# with 77 without git.
set -eu
cmake=$1
source=$2
command -v git >/dev/null || { echo "skipped: git is not installed"; exit 77; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"
mkdir -p src/base src/kernels src/engine
echo '/* one */' >src/base/a.h
git init -q src
git -C src add -A
commit() {
    git -C src -c user.name=test -c user.email=test@test commit -q --allow-empty -m "$1"
}

generate() {
    "$cmake" -DSOURCE="$root/src" -DOUT="$root/out" -DVERSION=9.8.7 -DGIT="$(command -v git)" \
        -P "$source/cmake/generate.cmake"
}

# expect FILE PATTERN: a line that matches.
expect() {
    grep -qE "$2" "out/$1" || {
        echo "no '$2' in $1:"
        cat "out/$1"
        exit 1
    }
}

commit first
generate
first=$(git -C src rev-parse --short=12 HEAD)
expect rk_version.h 'RK_VERSION +"9\.8\.7"'
expect rk_version.h "RK_GIT_COMMIT \"$first\""
cp out/rk_interface.h interface
touch -d @1 out/rk_version.h out/rk_interface.h
generate
[ "$(stat -c %Y out/rk_version.h) $(stat -c %Y out/rk_interface.h)" = "1 1" ]

echo 'int main;' >src/base/a.c # in no header
git -C src add -A
commit second
generate
second=$(git -C src rev-parse --short=12 HEAD)
[ "$first" != "$second" ]
expect rk_version.h "RK_GIT_COMMIT \"$second\""
[ "$(stat -c %Y out/rk_interface.h)" = 1 ]

echo '/* two */' >src/base/a.h
generate
expect rk_version.h "RK_GIT_COMMIT \"$second-dirty\""
expect rk_interface.h 'RK_INTERFACE "9\.8\.7-[0-9a-f]{16}"'
if cmp -s interface out/rk_interface.h; then
    echo "the interface did not follow its header"
    exit 1
fi

rm -rf src/.git # an archive of the sources
generate
expect rk_version.h 'RK_GIT_COMMIT "unknown"'
