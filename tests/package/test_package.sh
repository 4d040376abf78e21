#!/bin/sh
# test_package.sh DIR: goal: the Debian packages in DIR hold what they should, and policy has nothing against them.
# Method: control fields and lists of files; lintian, where it is installed, errors and warnings.
set -eu
dir=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_package: $*"
    exit 1
}
package() {
    # shellcheck disable=SC2086 # a pattern
    set -- "$dir"/$1_*.deb
    [ $# -eq 1 ] && [ -e "$1" ] || fail "expected one package, found: $*"
    echo "$1"
}
rankd=$(package rankd)
driver=$(package 'librankd-driver[0-9]*')
dev=$(package librankd-driver-dev)

# --- what is in them ---
has() { # package, path
    dpkg-deb -c "$1" | awk '{ print $6 }' | grep -qx "\.$2" || fail "$1 has no $2"
}
for path in /usr/bin/rankd /usr/bin/rankctl /usr/lib/systemd/system/rankd@.service /usr/lib/systemd/system/rankd.target \
    /usr/lib/sysusers.d/rankd.conf /etc/rankd/rankd.json /usr/share/doc/rankd/docs/systemd.md \
    /usr/share/man/man1/rankctl.1.gz /usr/share/man/man1/rankd-bench.1.gz /usr/share/man/man8/rankd.8.gz /usr/share/man/man5/rankd-job.5.gz \
    /usr/share/man/man5/rankd.conf.5.gz /usr/share/bash-completion/completions/rankctl \
    /usr/share/zsh/vendor-completions/_rankctl /usr/share/doc/rankd/copyright /usr/share/doc/rankd/changelog.Debian.gz /usr/share/rankd/proto/rankd/v1/worker.proto \
    /usr/share/rankd/grafana/rankd.json /usr/share/rankd/deploy/compose/compose.yaml; do
    has "$rankd" "$path"
done
abi=$(dpkg-deb -f "$driver" Package | sed 's/^librankd-driver//')
lib=/usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)
has "$driver" "$lib/librankd_driver.so.$abi"
has "$dev" "$lib/librankd_driver.so"
has "$dev" "$lib/pkgconfig/rankd_driver.pc"
has "$dev" /usr/include/rankd/driver/rk_driver.h
if dpkg-deb -c "$rankd" | grep -E ' \./usr/(include|lib/pkgconfig|lib/lib)'; then
    fail "$rankd has files of a program that links the library"
fi
for deb in "$rankd" "$driver" "$dev"; do
    if dpkg-deb -c "$deb" | awk '$2 != "root/root" || $1 ~ /^.(.......w|....w)/' | grep -v '^l'; then
        fail "$deb has files that are not root's, or that others may write"
    fi
done

field() { dpkg-deb -f "$1" "$2"; }
[ "$(field "$rankd" Package)" = rankd ]
[ "$(field "$rankd" Architecture)" = "$(dpkg --print-architecture)" ]
field "$rankd" Version | grep -qE '^[0-9]+\.[0-9]+\.[0-9]+-[0-9]+$'
for library in libc6 libgrpc libuv1 libjansson4 libssl3 libcurl libpcre2-8-0 systemd passwd; do
    field "$rankd" Depends | grep -q "$library" || fail "rankd does not depend on $library"
done
[ "$(field "$dev" Depends)" = "librankd-driver$abi (= $(field "$rankd" Version))" ]

# Programs have no search path of their own and no debug information.
dpkg-deb -x "$rankd" "$work/rankd"
dpkg-deb -x "$driver" "$work/driver"
for program in "$work"/rankd/usr/bin/* "$work/driver$lib/librankd_driver.so.$abi"; do
    if readelf -d "$program" | grep -E 'RPATH|RUNPATH' || readelf -S "$program" | grep -F .debug_info; then
        fail "$program was not prepared for a package"
    fi
done
# pkg-config finds headers and library, wherever the packages are unpacked.
dpkg-deb -x "$dev" "$work/driver"
PKG_CONFIG_PATH=$work/driver$lib/pkgconfig
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir rankd_driver)
[ -e "$libdir/librankd_driver.so.$abi" ] || fail "rankd_driver.pc: libdir=$libdir has no library"
[ -e "$(pkg-config --variable=includedir rankd_driver)/driver/rk_driver.h" ] ||
    fail "rankd_driver.pc: includedir has no headers"
python3 -m json.tool "$work/rankd/etc/rankd/rankd.json" >/dev/null
"$work/rankd/usr/bin/rankd" --config "$work/rankd/etc/rankd/rankd.json" --check-config >/dev/null

if command -v lintian >/dev/null; then
    lintian --fail-on error,warning "$rankd" "$driver" "$dev" >"$work/lintian" || {
        cat "$work/lintian"
        fail "lintian found errors or warnings"
    }
    echo "lintian: no errors, no warnings"
else
    echo "lintian is not installed; not run"
fi
