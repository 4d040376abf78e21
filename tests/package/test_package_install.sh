#!/bin/sh
# test_package_install.sh DIR: goal: the Debian packages in DIR come and go without traces. Method: dpkg installs, upgrades,
# removes and purges them in an empty root, whose maintainer scripts see by DPKG_ROOT. Exits with 77 if that is not
# possible.
set -eu
dir=$1

skip() {
    echo "skipped: $*"
    exit 77
}
fail() {
    echo "test_package_install: $*"
    exit 1
}
command -v systemd-sysusers >/dev/null || skip "systemd-sysusers, which makes the user, is not installed"
enter=
if [ "$(id -u)" -ne 0 ]; then
    enter="unshare --map-root-user"
    $enter true 2>/dev/null || skip "this user may not make namespaces"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
rankd=$(echo "$dir"/rankd_*.deb)

mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/etc" "$root/usr/share" "$root/tmp"
touch "$root/var/lib/dpkg/status"
for name in passwd group shadow gshadow; do
    printf '' >"$root/etc/$name"
done
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
in_root() {
    $enter dpkg --root="$root" --force-not-root --force-script-chrootless --force-depends "$@" >"$work/dpkg" 2>&1 || {
        cat "$work/dpkg"
        fail "dpkg $1 failed"
    }
}
in_root -i "$dir"/librankd-driver[0-9]*.deb "$rankd"
grep -q '^rankd:x:[0-9]*:[0-9]*:rankd daemons:/var/lib/rankd:' "$root/etc/passwd" || fail "there is no user rankd"
grep -q '^render:.*rankd' "$root/etc/group" || fail "rankd is not in the group render"

# An upgrade keeps a changed configuration, a removal too.
echo '{"log": {"level": "debug"}}' >"$root/etc/rankd/rankd.json"
mkdir -p "$root/var/lib/rankd/0" "$root/var/log/rankd"
touch "$root/var/lib/rankd/0/epoch" "$root/etc/rankd/tokens"
in_root --force-confold -i "$rankd"
grep -q debug "$root/etc/rankd/rankd.json" || fail "an upgrade has overwritten the configuration"
in_root --remove rankd
[ ! -e "$root/usr/bin/rankd" ]
grep -q debug "$root/etc/rankd/rankd.json" || fail "a removal has taken the configuration"
in_root -i "$rankd"
in_root --purge rankd
for path in etc/rankd var/lib/rankd var/log/rankd usr/share/rankd usr/share/doc/rankd; do
    [ ! -e "$root/$path" ] || fail "a purge has left /$path"
done
if grep rankd "$root/etc/passwd" "$root/etc/group" "$root/etc/shadow" "$root/etc/gshadow"; then
    fail "a purge has left the user"
fi
