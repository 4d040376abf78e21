"""test_compose.py BUILD_DIR SOURCE_DIR: goal: deploy/compose trains the digits example on four daemons under mutual TLS.

Method: what stands in the file (commands, dependencies, addresses, health checks, the stop signal) is done by hand with processes
of this build in a network of their own: a container's paths become folders, its host name an address of ours. The driver gets
arguments that make the run short, nothing else is changed.
"""
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml is not installed")
    sys.exit(77)

BUILD, SOURCE = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
SHORT = ["data.train_batch_size=4", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
         "trainer.total_training_steps=2"]
START_S, RUN_S = 60, 120

compose = yaml.safe_load((SOURCE / "deploy/compose/compose.yaml").read_text())
services = compose["services"]


def addresses():
    """Host name -> address of the services that have a fixed one."""
    return {service["hostname"]: service["networks"]["cluster"]["ipv4_address"]
            for service in services.values() if "hostname" in service}


def enter_network(work):
    """Runs this program again in a network that has these addresses."""
    hosts = work / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in addresses().items()))
    code = subprocess.call(["sh", str(SOURCE / "tests/deploy/netns.sh"), str(hosts), sys.executable, *sys.argv],
                           env={**os.environ, "RK_COMPOSE_WORK": str(work)})
    sys.exit(code)


class Containers:
    """Runs the commands of services; a volume or a folder of the image is a folder of ours."""

    def __init__(self, work):
        self.work = work
        self.paths = {"/opt/rankd/share/rankd": str(SOURCE), "/opt/rankd": str(SOURCE)}
        for service in services.values():
            for volume in service.get("volumes", []):
                name, target = volume.split(":")[:2]
                assert name in compose["volumes"], f"volume {name} is not declared"
                (work / name).mkdir(exist_ok=True)
                self.paths[target] = str(work / name)

    def translate(self, text):
        for path in sorted(self.paths, key=len, reverse=True):
            text = text.replace(path, self.paths[path])
        return text

    def start(self, name, command, **kwargs):
        """In a UTS namespace with the service's host name, which $(hostname) prints."""
        hostname = services[name].get("hostname", name)
        command = [self.translate(word) for word in command]
        inner = ["sh", "-c", f"hostname {hostname} && exec {shlex.join(command)}"]
        env = {**os.environ, "PATH": f"{BUILD}/bin:{os.environ['PATH']}", "OMP_WAIT_POLICY": "passive"}
        return subprocess.Popen(["unshare", "--uts", *inner], env=env, **kwargs)

    def run(self, name, command, seconds, **kwargs):
        process = self.start(name, command, **kwargs)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def health_command(service):
    kind, text = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    return ["sh", "-c", text.replace("$$", "$")]


def wait_healthy(containers, daemons):
    deadline = time.monotonic() + START_S
    for name, process in daemons.items():
        while containers.run(name, health_command(services[name]), 30, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL) != 0:
            assert process.poll() is None, f"{name} has ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{name} is not healthy after {START_S} s"
            time.sleep(0.2)


def needs(service, condition):
    return sorted(name for name, row in service.get("depends_on", {}).items() if row["condition"] == condition)


def check_start_order(names):
    for name in names:
        assert needs(services[name], "service_completed_successfully") == ["certs"], name
    assert needs(services["driver"], "service_healthy") == names


def train(containers, names):
    assert containers.run("certs", services["certs"]["command"], 60) == 0
    assert containers.run("certs", services["certs"]["command"], 60) == 0, "the second 'up' makes no new certificates"
    daemons = {name: containers.start(name, services[name]["command"], stderr=subprocess.DEVNULL) for name in names}
    try:
        wait_healthy(containers, daemons)
        assert containers.run("driver", services["driver"]["command"] + SHORT, RUN_S) == 0
        started = time.monotonic()
        for process in daemons.values():
            process.send_signal(signal.SIGTERM)  # the image's STOPSIGNAL
        for name, process in daemons.items():
            assert process.wait(60) == 0, f"{name} ended with {process.returncode}"
        assert time.monotonic() - started < int(services[names[0]]["stop_grace_period"].rstrip("s"))
    finally:
        for process in daemons.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def main():
    if "RK_COMPOSE_WORK" not in os.environ:
        with tempfile.TemporaryDirectory() as work:
            enter_network(pathlib.Path(work))
    containers = Containers(pathlib.Path(os.environ["RK_COMPOSE_WORK"]))
    names = sorted(name for name in services if name.startswith("rankd-"))
    assert len(names) == 4
    check_start_order(names)
    train(containers, names)
    run = containers.work / "runs/digits"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert (run / "hf/model.safetensors").stat().st_size > 0


main()
