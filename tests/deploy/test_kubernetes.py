"""test_kubernetes.py BUILD_DIR SOURCE_DIR: goal: the pods of deploy/kubernetes train the digits example, with the secrets that
docs/deploy.md makes.

Method: the commands of init containers, daemons, probes and drivers of the StatefulSet and of the JobSet run as processes of
this build (containers.py). Secrets have the files and the modes that Kubernetes gives them; a pod has folders of its own for its
volumes; 0.0.0.0 becomes its address, because all pods are in one network here. Drivers get arguments that make the run short.
"""
import pathlib
import re
import shutil
import subprocess
import sys

import containers

try:
    import grpc
    import yaml
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BUILD, SOURCE = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
COUNT = 4


def load(name, kind):
    for item in yaml.safe_load_all((SOURCE / "deploy/kubernetes" / name).read_text()):
        if item["kind"] == kind:
            return item
    raise AssertionError(f"{name} has no {kind}")


POOL, DRIVER, JOBSET = (load("statefulset.yaml", "StatefulSet"), load("driver.yaml", "Job"), load("jobset.yaml", "JobSet"))
# Host name -> address, of the pods of both.
ADDRESSES = {f"rankd-{i}.rankd": f"10.77.2.{10 + i}" for i in range(COUNT)}
ADDRESSES.update({f"digits-daemon-0-{i}.digits": f"10.77.2.{20 + i}" for i in range(COUNT)})


def make_secrets(work, hosts):
    """As docs/deploy.md does; files of a Secret are readable by the group."""
    certs = work / "certs"
    subprocess.run([BUILD / "bin/rankctl", "certs", "init", "--hosts", ",".join(hosts), "--out", certs], check=True,
                   stdout=subprocess.DEVNULL)
    token = "ab" * 32
    secrets = {"rankd-tls": ["ca.crt"] + [f"{host}.{end}" for host in hosts for end in ("crt", "key")],
               "rankd-driver": ["ca.crt", "rankctl.crt", "rankctl.key"], "rankd-tokens": []}
    for name, files in secrets.items():
        (work / name).mkdir()
        for file in files:
            shutil.copy(certs / file, work / name / file)
    (work / "rankd-tokens/tokens").write_text(f"driver:{token}\n")
    (work / "rankd-driver/token").write_text(f"{token}\n")
    for name in secrets:
        for file in (work / name).iterdir():
            file.chmod(0o440)


class Pod:
    """The template of a pod; `address` is its own."""

    def __init__(self, work, name, template, claims=(), address="127.0.0.1"):
        self.name, self.work, self.spec, self.address = name, work, template["spec"], address
        (work / name).mkdir()
        self.folders = {}
        for volume in self.spec["volumes"]:
            if "secret" in volume:
                self.folders[volume["name"]] = work / volume["secret"]["secretName"]
            else: # the claim is one directory for all pods
                shared = work if "persistentVolumeClaim" in volume else work / name
                self.folders[volume["name"]] = shared / volume["name"]
        for claim in claims:
            self.folders[claim["metadata"]["name"]] = work / name / claim["metadata"]["name"]
        for folder in self.folders.values():
            folder.mkdir(exist_ok=True)

    def start(self, container, more=(), **kwargs):
        mounts = {mount["mountPath"]: str(self.folders[mount["name"]]) for mount in container["volumeMounts"]
                  if mount["mountPath"] not in ("/tmp", "/dev/shm")}
        env = {row["name"]: row.get("value", self.name) for row in container.get("env", [])}
        box = containers.Container(BUILD, SOURCE, self.name, mounts, env)
        command = [re.sub(r"\$\((\w+)\)", lambda m: env.get(m.group(1), m.group(0)), word).replace("0.0.0.0", self.address)
                   for word in container["command"]]
        if more and command[0] == "sh":
            command[-1] += " " + " ".join(more)
        else:
            command += more
        return box.start(command, **kwargs)

    def run_init(self):
        for container in self.spec["initContainers"]:
            assert self.start(container).wait(60) == 0, f"{self.name}: {container['name']}"


def probe(pod, name):
    """A kubelet's answer to a grpc probe."""
    row = pod.spec["containers"][0][name]["grpc"]
    service = row.get("service", "").encode()
    with grpc.insecure_channel(f"{pod.address}:{row['port']}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
        try:
            return check(b"\x0a" + bytes([len(service)]) + service if service else b"", timeout=5) == b"\x08\x01"
        except grpc.RpcError:
            return False


def train(pods, driver, keys):
    for pod in [*pods, driver]:
        pod.run_init()
    daemons = {pod.name: pod.start(pod.spec["containers"][0], stderr=subprocess.DEVNULL) for pod in pods}
    try:
        for pod in pods:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                containers.wait_for(lambda: probe(pod, name), daemons[pod.name], f"{pod.name}: {name}")
        process = driver.start(driver.spec["containers"][0], keys)
        try:
            assert process.wait(containers.RUN_S) == 0
        finally:
            process.kill()
        containers.stop_all(daemons)
    finally:
        containers.kill_all(daemons)


def train_on_pool(work):
    make_secrets(work, [f"rankd-{i}.rankd" for i in range(COUNT)])
    assert POOL["spec"]["replicas"] == COUNT
    pods = [Pod(work, f"rankd-{i}", POOL["spec"]["template"], POOL["spec"]["volumeClaimTemplates"],
                ADDRESSES[f"rankd-{i}.rankd"]) for i in range(COUNT)]
    driver = Pod(work, "driver", DRIVER["spec"]["template"])
    train(pods, driver, containers.SHORT)
    containers.check_run(driver.folders["runs"] / "digits")


def train_jobset(work):
    jobs = {job["name"]: job["template"]["spec"] for job in JOBSET["spec"]["replicatedJobs"]}
    names = [f"digits-daemon-0-{i}" for i in range(jobs["daemon"]["completions"])]
    assert len(names) == COUNT
    make_secrets(work, [f"{name}.digits" for name in names])
    pods = [Pod(work, name, jobs["daemon"]["template"], (), ADDRESSES[f"{name}.digits"]) for name in names]
    driver = Pod(work, "driver", jobs["driver"]["template"])
    train(pods, driver, containers.SHORT)
    containers.check_run(driver.folders["runs"] / "digits")


folder = containers.in_network(ADDRESSES, SOURCE)
for name, test in (("pool", train_on_pool), ("jobset", train_jobset)):
    (folder / name).mkdir()
    test(folder / name)
    print(f"{name}: done")
