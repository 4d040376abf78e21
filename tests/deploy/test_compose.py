"""test_compose.py BUILD_DIR SOURCE_DIR: goal: deploy/compose trains the digits example on four daemons under mutual TLS.

Method: what stands in the file (commands, dependencies, addresses, health checks) is done by hand with processes of this build
(containers.py). The driver gets arguments that make the run short, nothing else is changed.
"""
import pathlib
import subprocess
import sys
import time

import containers

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml is not installed")
    sys.exit(77)

BUILD, SOURCE = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
compose = yaml.safe_load((SOURCE / "deploy/compose/compose.yaml").read_text())
services = compose["services"]


def make_container(name, work):
    paths = {}
    for volume in services[name].get("volumes", []):
        volume_name, target = volume.split(":")[:2]
        assert volume_name in compose["volumes"], f"volume {volume_name} is not declared"
        (work / volume_name).mkdir(exist_ok=True)
        paths[target] = str(work / volume_name)
    return containers.Container(BUILD, SOURCE, services[name].get("hostname", name), paths)


def is_healthy(container, service):
    kind, text = service["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    return container.run(["sh", "-c", text.replace("$$", "$")], 30, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL) == 0


def needs(service, condition):
    return sorted(name for name, row in service.get("depends_on", {}).items() if row["condition"] == condition)


def train(work, names):
    boxes = {name: make_container(name, work) for name in services}
    assert boxes["certs"].run(services["certs"]["command"], 60) == 0
    assert boxes["certs"].run(services["certs"]["command"], 60) == 0, "the second 'up' makes no new certificates"
    daemons = {name: boxes[name].start(services[name]["command"], stderr=subprocess.DEVNULL) for name in names}
    try:
        for name in names:
            containers.wait_for(lambda: is_healthy(boxes[name], services[name]), daemons[name], f"{name} is healthy")
        assert boxes["driver"].run(services["driver"]["command"] + containers.SHORT, containers.RUN_S) == 0
        started = time.monotonic()
        containers.stop_all(daemons)
        assert time.monotonic() - started < int(services[names[0]]["stop_grace_period"].rstrip("s"))
    finally:
        containers.kill_all(daemons)


names = sorted(name for name in services if name.startswith("rankd-"))
assert len(names) == 4
for name in names:
    assert needs(services[name], "service_completed_successfully") == ["certs"], name
assert needs(services["driver"], "service_healthy") == names
folder = containers.in_network({services[name]["hostname"]: services[name]["networks"]["cluster"]["ipv4_address"]
                                for name in names}, SOURCE)
train(folder, names)
containers.check_run(folder / "runs/digits")
