#!/bin/sh
# Run as root under systemd in a root with the package (boot_root.sh): two CPU daemons as docs/systemd.md starts them, what
# an operator does with them, then a purge.
set -eux

mkdir -p /etc/systemd/system/rankd@.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/bin/rankd --slot %%i --device cpu --cpu.num_threads=1\n' \
    >/etc/systemd/system/rankd@.service.d/cpu.conf
systemctl daemon-reload
systemctl enable --now rankd@0.service rankd@1.service rankd.target
systemctl is-active rankd@0.service rankd@1.service rankd.target
[ "$(systemctl show -p User --value rankd@0)" = rankd ]
[ "$(stat -c %U:%G /run/rankd/0/rankd.sock)" = rankd:rankd ]
rankctl status --hosts 'unix:/run/rankd/[0-1]/rankd.sock'
rankctl run /usr/share/rankd/examples/digits/grpo.json --local 2 --quiet --run-dir /var/tmp/run \
    data.train_batch_size=4 actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=2 \
    trainer.total_training_steps=2
[ -s /var/tmp/run/hf/model.safetensors ]

# A reload keeps the process; a killed daemon comes back.
before=$(systemctl show -p MainPID --value rankd@0)
systemctl reload rankd@0
[ "$(systemctl show -p MainPID --value rankd@0)" = "$before" ]
systemctl kill -s KILL rankd@1
seconds=0
until [ "$(systemctl show -p NRestarts --value rankd@1)" -eq 1 ] && systemctl is-active rankd@1; do
    [ "$seconds" -lt 15 ]
    sleep 1
    seconds=$((seconds + 1))
done
rankctl status --hosts unix:/run/rankd/1/rankd.sock

# On loopback TCP each daemon has a token of its own, which rankctl finds; for others there is none.
mkdir -p /etc/systemd/system/rankd@.service.d
printf '[Service]\nEnvironment=RANKD_RPC_LISTEN=127.0.0.1:700%%i\n' >/etc/systemd/system/rankd@.service.d/tcp.conf
systemctl daemon-reload
systemctl restart rankd@0 rankd@1
[ "$(stat -c %U:%G:%a /run/rankd/1/token)" = rankd:rankd:640 ]
rankctl status --hosts 'localhost:[7000-7001]'
runuser -u rankd -- rankctl status --hosts '127.0.0.1:[7000-7001]'
code=0
runuser -u nobody -- rankctl shutdown --yes --hosts '127.0.0.1:[7000-7001]' || code=$?
[ "$code" -eq 4 ]
if python3 -c 'import grpc, numpy'; then
    PYTHONPATH=/usr/share/rankd/python python3 -B -c \
        'import rankd; print([str(row) for row in rankd.connect("127.0.0.1:[7000-7001]").status()])'
fi
rm /etc/systemd/system/rankd@.service.d/tcp.conf
systemctl daemon-reload
systemctl restart rankd@0 rankd@1

# A configuration that does not parse ends with 2 and is not tried again.
systemctl stop rankd@1
cp /etc/rankd/rankd.json /etc/rankd/good.json
echo '{"rpc": {"max_inflight": "8Q"}}' >/etc/rankd/rankd.json
systemctl start rankd@1 && exit 1
sleep 7
[ "$(systemctl show -p ExecMainStatus --value rankd@1)" -eq 2 ]
[ "$(systemctl is-active rankd@1)" = failed ]
mv /etc/rankd/good.json /etc/rankd/rankd.json

# Removed: stopped, and the configuration is kept. Purged: nothing is left.
dpkg --remove rankd
[ "$(systemctl is-active rankd@0)" != active ]
[ -e /etc/rankd/rankd.json ]
dpkg --purge rankd
for path in /etc/rankd /var/lib/rankd /var/log/rankd /run/rankd /etc/systemd/system/rankd.target.wants \
    /etc/systemd/system/multi-user.target.wants/rankd.target /usr/share/doc/rankd /usr/share/rankd; do
    [ ! -e "$path" ]
done
id rankd && exit 1
if dpkg-query -W rankd; then
    exit 1
fi
