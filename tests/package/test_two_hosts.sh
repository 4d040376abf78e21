#!/bin/sh
# test_two_hosts.sh DIR SOURCE_DIR: goal: the commands of the page "Two hosts with eight GPUs each"
# of docs/deploy.md give a successful run. Method: three machines, each a copy-on-write view of this
# one in a network namespace on one bridge: node1 and node2 boot systemd, login does not; /srv/rl is
# one shared directory. The page's commands run on the host of their prompt, with changes for this
# machine: no GPUs, two daemons per node, dpkg instead of apt, and an scp that copies between the
# roots. Exits with 77 if that is not possible.
set -eu
dir=$1
source=$2
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" -eq 0 ] || skip "only root can boot systemd in namespaces"
[ -x /lib/systemd/systemd ] || skip "systemd is not installed"
command -v ip >/dev/null || skip "iproute2 is not installed"
if [ "${RK_TWO_HOSTS:-}" != 1 ]; then
    # Not in a root that is no mount point, as that of chroot.
    unshare --mount true 2>/dev/null || skip "mount namespaces are not possible here"
    RK_TWO_HOSTS=1 exec unshare --mount sh "$0" "$@"
fi

work=$(mktemp -d)
clean_up() {
    touch "$work/control/node1/end" "$work/control/node2/end" 2>/dev/null || true
    # shellcheck disable=SC2046 # process ids
    kill $(cat "$work"/net.* 2>/dev/null) 2>/dev/null || true
    wait
    umount -R -l "$work" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
mount -t tmpfs tmpfs "$work" || skip "mounts are not allowed"
mkdir "$work/rl"

# --- machines ---
make_root() { # name
    mkdir -p "$work/$1/data" "$work/$1/work" "$work/root/$1" "$work/control/$1"
    mount -t overlay -o "lowerdir=/,upperdir=$work/$1/data,workdir=$work/$1/work" overlay "$work/root/$1" ||
        skip "overlays are not allowed"
    root=$work/root/$1
    find "$root/etc/systemd/system" -mindepth 1 -name '*.wants' -exec rm -rf {} +
    rm -rf "$root/etc/rankd" "$root/var/lib/rankd" "$root/opt/page"
    mkdir -p "$root/srv/rl" "$root/control" "$root/opt/page"
    mount --bind "$work/rl" "$root/srv/rl"
    mount --bind "$work/control/$1" "$root/control"
    printf '127.0.0.1 localhost\n10.0.0.1 login\n10.0.0.7 node1\n10.0.0.8 node2\n' >"$root/etc/hosts"
    echo "$1" >"$root/etc/hostname"
    # Output of daemons goes to a file, because there is no journal.
    mkdir -p "$root/etc/systemd/system/rankd@.service.d"
    printf '[Service]\nStandardError=append:/var/log/rankd-test.%%i\n' >"$root/etc/systemd/system/rankd@.service.d/log.conf"
    cp "$dir"/rankd_*.deb "$root/opt/page/rankd.deb"
    unshare --net sleep 1000 &
    echo $! >"$work/net.$1"
}
in_net() { # name, command...
    net=$(cat "$work/net.$1")
    shift
    nsenter --net="/proc/$net/ns/net" "$@"
}
for name in login node1 node2; do
    make_root "$name"
done
sleep 1
in_net login ip link add br0 type bridge
in_net login ip address add 10.0.0.1/24 dev br0
in_net login ip link set br0 up
in_net login ip link set lo up
for row in node1:10.0.0.7 node2:10.0.0.8; do
    name=${row%%:*}
    in_net login ip link add "$name" type veth peer name eth0 netns "$(cat "$work/net.$name")"
    in_net login ip link set "$name" master br0 up
    in_net "$name" ip address add "${row#*:}/24" dev eth0
    in_net "$name" ip link set eth0 up
    in_net "$name" ip link set lo up
    RK_BOOT_NET="nsenter --net=/proc/$(cat "$work/net.$name")/ns/net" \
        sh "$here/boot_root.sh" "$work/root/$name" "$here/run_steps.sh" 280 >"$work/$name.log" 2>&1 &
done

# --- the job, and the earlier contents of login ---
mount --bind /proc "$work/root/login/proc"
mount --bind /dev "$work/root/login/dev"
chroot "$work/root/login" dpkg -i /opt/page/rankd.deb >/dev/null
cp -r "$source/examples/digits" "$work/rl/digits"
python3 - "$source/examples/digits/grpo.json" "$work/root/login/opt/page/job.json" <<'END'
import json, sys
job = json.load(open(sys.argv[1]))
job["data"].update(train_files=["/srv/rl/digits/train.jsonl"], train_batch_size=4)
models = job["actor_rollout_ref"]
models["model"] = {"hf_config_path": "/srv/rl/digits/config.json", "tokenizer_path": "/srv/rl/digits/tokenizer.json"}
models["rollout"]["n"] = 4
models["actor"]["ppo_mini_batch_size"] = 2
job["trainer"]["total_training_steps"] = 2
json.dump(job, open(sys.argv[2], "w"))
END
cat >"$work/root/login/usr/local/bin/scp" <<'END'
#!/bin/sh
# scp -p FILE... root@HOST:DIR/
shift
for target; do :; done
host=${target#root@}
while [ $# -gt 1 ]; do
    cp -p "$1" "/nodes/${host%%:*}${host#*:}"
    shift
done
END
chmod +x "$work/root/login/usr/local/bin/scp"
for name in node1 node2; do
    mkdir -p "$work/root/login/nodes/$name"
    mount --rbind "$work/root/$name" "$work/root/login/nodes/$name"
done

# --- the page ---
mkdir "$work/steps"
python3 "$here/page_steps.py" "$source/docs/deploy.md" "$work/steps"
sed -i -e 's|^apt install .*|dpkg -i /opt/page/rankd.deb|' -e 's|^cp librankd_cuda.so.*|true|' \
    -e 's|cuda:%i|cpu --cpu.num_threads=1|' -e 's|{0\.\.7}|{0..1}|' -e 's|7000-7007|7000-7001|' "$work"/steps/*
: >"$work/exports"

on_nodes() { # step, name...
    step=$1
    shift
    number=$(basename "$step")
    number=${number%%.*}
    for name; do
        cp "$step" "$work/control/$name/$number.new"
        mv "$work/control/$name/$number.new" "$work/control/$name/$number.sh"
    done
    for name; do
        tries=0
        while [ ! -e "$work/control/$name/$number.rc" ]; do
            tries=$((tries + 1))
            if [ "$tries" -gt 600 ]; then
                cat "$work/$name.log" "$work/control/$name/$number.log" 2>/dev/null
                echo "$name did not run: $(cat "$step")"
                exit 1
            fi
            sleep 0.1
        done
        if [ "$(cat "$work/control/$name/$number.rc")" -ne 0 ]; then
            cat "$work/control/$name/$number.log"
            cat "$work/root/$name"/var/log/rankd-test.* 2>/dev/null || true
            echo "failed on $name: $(cat "$step")"
            exit 1
        fi
    done
}
on_login() { # step
    grep '^export ' "$1" >>"$work/exports" || true
    { echo 'cd /opt/page'; cat "$work/exports" "$1"; } >"$work/root/login/opt/page/step.sh"
    in_net login env OMP_WAIT_POLICY=passive chroot "$work/root/login" bash -e /opt/page/step.sh || {
        echo "failed on login: $(cat "$1")"
        exit 1
    }
}
for step in "$work"/steps/*; do
    echo "--- ${step##*.}: $(cat "$step")"
    case $step in
    *.login) on_login "$step" ;;
    *.node1) on_nodes "$step" node1 ;;
    *) on_nodes "$step" node1 node2 ;;
    esac
done

[ "$(wc -l <"$work/rl/first/metrics.jsonl")" -eq 2 ]
[ -s "$work/rl/first/hf/model.safetensors" ]
[ -e "$work/rl/first/hf/tokenizer.json" ]
echo "two hosts: a run of $(wc -l <"$work/rl/first/metrics.jsonl") steps"
