"""Commands of containers as processes of this machine: paths become folders, host names addresses of a network of their own."""
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

# Arguments that make the digits example short.
SHORT = ["data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
         "trainer.total_training_steps=2"]
START_S, RUN_S = 60, 120


def in_network(addresses, source):
    """The folder to work in, once this program runs in a network that has these addresses (name -> address)."""
    if "RK_DEPLOY_WORK" in os.environ:
        return pathlib.Path(os.environ["RK_DEPLOY_WORK"])
    with tempfile.TemporaryDirectory() as work:
        hosts = pathlib.Path(work) / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in addresses.items()))
        sys.exit(subprocess.call(["sh", str(source / "tests/deploy/netns.sh"), str(hosts), sys.executable, *sys.argv],
                                 env={**os.environ, "RK_DEPLOY_WORK": work}))


class Container:
    """One container: its paths (inside -> folder), host name and variables."""

    def __init__(self, build, source, hostname, paths, env=None):
        self.build, self.hostname, self.env = build, hostname, env or {}
        self.paths = {"/opt/rankd/share/rankd": str(source), "/opt/rankd": str(source), **paths}

    def translate(self, text):
        for path in sorted(self.paths, key=len, reverse=True):
            text = text.replace(path, self.paths[path])
        return text

    def start(self, command, **kwargs):
        """The UTS namespace has the host name that $(hostname) prints."""
        inner = f"hostname {self.hostname} && exec {shlex.join(self.translate(word) for word in command)}"
        env = {**os.environ, **self.env, "PATH": f"{self.build}/bin:{os.environ['PATH']}", "OMP_WAIT_POLICY": "passive"}
        env = {name: self.translate(value) if name.startswith("RANKCTL_") else value for name, value in env.items()}
        return subprocess.Popen(["unshare", "--uts", "sh", "-c", inner], env=env, **kwargs)

    def run(self, command, seconds, **kwargs):
        process = self.start(command, **kwargs)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def wait_for(condition, process, what):
    deadline = time.monotonic() + START_S
    while not condition():
        assert process.poll() is None, f"{what}: the process has ended with {process.returncode}"
        assert time.monotonic() < deadline, f"{what}: not after {START_S} s"
        time.sleep(0.2)


def stop_all(daemons):
    """By SIGTERM, the images' STOPSIGNAL; they end with 0."""
    for process in daemons.values():
        process.terminate()
    for name, process in daemons.items():
        assert process.wait(60) == 0, f"{name} ended with {process.returncode}"


def kill_all(daemons):
    for process in daemons.values():
        if process.poll() is None:
            process.kill()
            process.wait()


def check_run(folder):
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "hf/model.safetensors").stat().st_size > 0
