#!/bin/sh
# test_package_boot.sh DIR host|clean: goal: the package in DIR runs daemons under systemd as docs/systemd.md says, and leaves
# nothing when it is purged. Method: check_service.sh in a root that boots systemd in namespaces: a
# copy-on-write view of this machine (host), or a minimal Debian with only the package's
# dependencies (clean; needs debootstrap and a mirror). Exits with 77 if that is not possible.
set -eu
dir=$1
kind=$2
here=$(dirname "$0")

skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "only root can boot systemd in namespaces"
if [ "${RK_OWN_MOUNTS:-}" != 1 ]; then # nothing stays mounted, also after errors
    # Not in a root that is no mount point, as that of chroot.
    unshare --mount true 2>/dev/null || skip "mount namespaces are not possible here"
    RK_OWN_MOUNTS=1 exec unshare --mount sh "$0" "$@"
fi
[ -x /lib/systemd/systemd ] || [ "$kind" = clean ] || skip "systemd is not installed"

work=$(mktemp -d)
root=$work/root
mkdir "$root"
clean_up() {
    umount -l "$root" 2>/dev/null || true
    umount -l "$work/upper" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT

if [ "$kind" = host ]; then
    mkdir "$work/upper"
    mount -t tmpfs tmpfs "$work/upper" 2>/dev/null || skip "mounts are not allowed"
    mkdir "$work/upper/data" "$work/upper/work"
    mount -t overlay -o "lowerdir=/,upperdir=$work/upper/data,workdir=$work/upper/work" overlay "$root" 2>/dev/null ||
        skip "overlays are not allowed"
    # Services of this machine must not start a second time.
    find "$root/etc/systemd/system" -mindepth 1 -name '*.wants' -exec rm -rf {} +
    # Nor does its policy on starting and stopping services count, which images of containers have.
    rm -rf "$root/etc/rankd" "$root/var/lib/rankd" "$root/usr/sbin/policy-rc.d"
    chroot "$root" dpkg-query -W -f '${Status}' rankd 2>/dev/null | grep -q 'ok installed' && skip "rankd is installed"
    cp "$dir"/rankd_*.deb "$root/rankd.deb"
    chroot "$root" dpkg -i /rankd.deb
else
    command -v debootstrap >/dev/null || skip "debootstrap is not installed"
    # shellcheck disable=SC1091
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    debootstrap --variant=minbase "$suite" "$root" >"$work/log" 2>&1 || {
        tail -3 "$work/log"
        skip "no mirror of $suite can be reached"
    }
    cp /etc/resolv.conf "$root/etc/"
    cp "$dir"/*.deb "$root/"
    # apt rejects packages with missing dependencies.
    chroot "$root" sh -c 'apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            /rankd_*.deb /librankd-driver*.deb systemd-sysv dbus' >"$work/log" 2>&1 || {
        tail -30 "$work/log"
        exit 1
    }
fi
sh "$here/boot_root.sh" "$root" "$here/check_service.sh" 240
