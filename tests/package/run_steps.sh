#!/bin/sh
# Run as root under systemd in the root of a host (boot_root.sh): the scripts that appear in /control, in order, until there is
# a file "end". NN.sh leaves NN.log and NN.rc.
set -u
while [ ! -e /control/end ]; do
    for script in /control/*.sh; do
        result=${script%.sh}
        if [ -e "$script" ] && [ ! -e "$result.rc" ]; then
            bash "$script" >"$result.log" 2>&1
            echo $? >"$result.part"
            mv "$result.part" "$result.rc"
        fi
    done
    sleep 0.2
done
systemctl stop rankd.target
