#!/bin/sh
# test_driver_installed.sh BUILD_DIR CC [FLAG]: goal: a C program can be built from an installed
# copy alone, with pkg-config, and can command daemons. Method: install into a directory, move it,
# compile examples/c against it, and run it on two groups of installed daemons; the SONAME has the
# number of the ABI, and equal groups give equal tokens.
set -eu
build=$1
cc=$2
flag=${3:-}
source=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
daemons=
trap 'kill $daemons 2>/dev/null || true; rm -rf "$dir"' EXIT

cmake --install "$build" --prefix "$dir/first" >/dev/null
mv "$dir/first" "$dir/prefix"
prefix=$dir/prefix
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name rankd_driver.pc)")
export PKG_CONFIG_PATH
version=$(pkg-config --modversion rankd_driver)
grep -qF "rankd $version" <<END
$("$prefix/bin/rankd" --version)
END

libdir=$(pkg-config --variable=libdir rankd_driver)
abi=$(sed -n 's/^#define RK_DRIVER_ABI //p' "$(pkg-config --variable=includedir rankd_driver)/driver/rk_driver.h")
[ "$abi" = "$(pkg-config --variable=abi rankd_driver)" ]
objdump -p "$libdir/librankd_driver.so" | grep -q "SONAME *librankd_driver.so.$abi\$"

# declared_in HEADERS: the functions that they declare, without those defined inline
declared_in() {
    sed '/^static inline/,/^}/d' "$@" | "$cc" -fpreprocessed -dD -E -P -x c - 2>/dev/null |
        sed -n 's/^[a-z][a-z0-9_ *]*[ *]\(rk_[a-z0-9_]*\)(.*/\1/p' | sort -u
}
include=$(pkg-config --variable=includedir rankd_driver)
for library in rankd_driver rankd_rl; do
    headers=$(find "$include/base" "$include/proto" "$include/dispatch" "$include/driver" -name '*.h')
    [ $library = rankd_driver ] || headers="$headers $(find "$include/text" "$include/rl" -name '*.h')"
    # shellcheck disable=SC2086 # words
    declared_in $headers >"$dir/declared"
    [ "$(wc -l <"$dir/declared")" -gt 200 ]
    nm -D --defined-only "$libdir/lib$library.so" | sed 's/.* //' | sort >"$dir/exported"
    missing=$(comm -23 "$dir/declared" "$dir/exported")
    [ -z "$missing" ] || { echo "lib$library.so does not export:" $missing; exit 1; }
done

# shellcheck disable=SC2046,SC2086 # words
"$cc" -std=c11 -Wall -Wextra -Werror $flag "$source/examples/c/two_groups.c" \
    $(pkg-config --cflags --libs rankd_driver) -o "$dir/two_groups"

for i in 0 1 2 3; do
    "$prefix/bin/rankd" --rpc.listen="unix:$dir/$i.sock" >"$dir/$i.log" 2>&1 &
    daemons="$daemons $!"
done
for i in 0 1 2 3; do
    tries=0
    until [ -S "$dir/$i.sock" ]; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { cat "$dir/$i.log"; exit 1; }
        sleep 0.1
    done
done
LD_LIBRARY_PATH=$libdir "$dir/two_groups" "unix:$dir/0.sock,unix:$dir/1.sock" "unix:$dir/2.sock,unix:$dir/3.sock" \
    >"$dir/out"
for group in 0 1; do
    sed -n "s/^group $group //p" "$dir/out" >"$dir/group$group"
    [ "$(wc -l <"$dir/group$group")" -eq 4 ]
done
cmp "$dir/group0" "$dir/group1"

if LD_LIBRARY_PATH=$libdir "$dir/two_groups" "unix:$dir/none.sock" "unix:$dir/none.sock" 2>"$dir/err"; then
    exit 1
fi
grep -q '^UNAVAILABLE' "$dir/err"
