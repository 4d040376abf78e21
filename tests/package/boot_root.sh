#!/bin/sh
# boot_root.sh ROOT SCRIPT [LIMIT_S]: boots systemd in the root file system ROOT, in namespaces of its own (no network, /sys and
# /proc/sys read-only, a control group below ours), runs SCRIPT there as root and powers it off. Prints what SCRIPT
# printed and exits with its code. Needs to be root.
set -eu
root=$1
script=$2
limit=${3:-300}
group=rankd-boot-$$

if [ "${RK_BOOT_INNER:-}" != 1 ]; then
    export RK_BOOT_NET="${RK_BOOT_NET:-unshare --net}" # what enters its network
    # systemd shall find the group that it may fill as the top one, so the namespace begins in it.
    tree=$(mktemp -d)
    # shellcheck disable=SC2016 # for the inner shell
    code=0
    RK_BOOT_INNER=1 unshare --mount sh -c '
        tree=$1; group=$2; shift 2
        mount -t cgroup2 cgroup2 "$tree"
        mkdir "$tree/$group"
        home=$tree$(sed -n "s/^0:://p" /proc/self/cgroup)
        sh -c "echo \$\$ >$tree/$group/cgroup.procs; exec \"\$@\"" sh "$@" || code=$?
        for try in 1 2 3 4 5; do
            find "$tree/$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 1
            [ -d "$tree/$group" ] || break
        done
        exit "${code:-0}"' sh "$tree" "$group" \
        timeout -k 5 "$limit" $RK_BOOT_NET unshare --cgroup --mount --pid --fork --kill-child --ipc --uts \
        sh "$0" "$root" "$script" "$limit" >"$tree.log" 2>&1 || code=$?
    rmdir "$tree"
    if [ -e "$root/check.rc" ]; then
        cat "$root/check.log"
        rm -f "$tree.log"
        exit "$(cat "$root/check.rc")"
    fi
    cat "$tree.log" "$root/check.log" 2>/dev/null || true
    rm -f "$tree.log"
    echo "boot_root: systemd ended without running the script (code $code)"
    exit 1
fi

mount --make-rprivate /
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind -o ro "$root/proc/sys" "$root/proc/sys" 2>/dev/null || true
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in run tmp dev; do
    mount -t tmpfs tmpfs "$root/$folder"
done
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/shm"
chmod 1777 "$root/dev/shm" "$root/tmp"
ip link set lo up 2>/dev/null || true

cp "$script" "$root/check.sh"
units=$root/etc/systemd/system
cat >"$units/rankd-check.service" <<'UNIT'
[Unit]
After=basic.target dbus.socket
Wants=dbus.socket
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'sh /check.sh >/check.log 2>&1; echo $? >/check.rc'
ExecStopPost=systemctl poweroff --force
TimeoutStartSec=infinity
UNIT
cat >"$units/rankd-check.target" <<'UNIT'
[Unit]
Requires=basic.target rankd-check.service
After=basic.target
AllowIsolate=yes
UNIT
exec env -i container=rankd-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set -sys_module,-sys_rawio,-sys_time,-syslog,-sys_boot \
    chroot "$root" /lib/systemd/systemd --system --unit=rankd-check.target
