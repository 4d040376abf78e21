"""test_manifests.py BUILD_DIR SOURCE_DIR: goal: what no machine of ours can run is at least well-formed and agrees with itself.

Method: Kubernetes objects against tables of the fields that the API has and requires (unknown fields are errors), and against each
other: selectors, volumes, ports, claims. Flags of rankd and rankctl must exist. Dockerfiles against rules such as hadolint's.
"""
import json
import pathlib
import re
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("skipped: python3-yaml is not installed")
    sys.exit(77)

BUILD, SOURCE = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
problems = []


def check(condition, text):
    if not condition:
        problems.append(text)


# --- one table per type: fields, with "!" before required ones. A list [T] is a list of T, a dict
# {T} a map to T. ---

def fields(text, **types):
    table = {}
    for word in text.split():
        name = word.lstrip("!")
        table[name] = (word.startswith("!"), types.get(name.replace(".", "_")))
    return table


META = fields("name labels annotations namespace")
SELECTOR = fields("matchLabels matchExpressions")
GRPC = fields("!port service")
PROBE = fields("grpc exec httpGet tcpSocket initialDelaySeconds periodSeconds timeoutSeconds successThreshold failureThreshold",
               grpc=GRPC)
CAPABILITIES = fields("add drop")
SECCOMP = fields("!type localhostProfile")
CONTAINER_SECURITY = fields("allowPrivilegeEscalation readOnlyRootFilesystem capabilities runAsNonRoot runAsUser privileged",
                            capabilities=CAPABILITIES)
ENV = fields("!name value valueFrom", valueFrom=fields("fieldRef secretKeyRef", fieldRef=fields("!fieldPath apiVersion")))
CONTAINER = fields("!name !image command args env ports startupProbe livenessProbe readinessProbe resources volumeMounts "
                   "securityContext imagePullPolicy workingDir", env=[ENV],
                   ports=[fields("name !containerPort protocol")], startupProbe=PROBE, livenessProbe=PROBE,
                   readinessProbe=PROBE, resources=fields("requests limits"),
                   volumeMounts=[fields("!name !mountPath readOnly subPath")], securityContext=CONTAINER_SECURITY)
VOLUME = fields("!name secret emptyDir persistentVolumeClaim configMap hostPath",
                secret=fields("!secretName defaultMode items"), emptyDir=fields("medium sizeLimit"),
                persistentVolumeClaim=fields("!claimName readOnly"))
POD_SECURITY = fields("runAsNonRoot runAsUser runAsGroup fsGroup seccompProfile supplementalGroups", seccompProfile=SECCOMP)
POD = fields("!containers initContainers volumes restartPolicy terminationGracePeriodSeconds securityContext enableServiceLinks "
             "automountServiceAccountToken serviceAccountName nodeSelector tolerations affinity hostname subdomain",
             containers=[CONTAINER], initContainers=[CONTAINER], volumes=[VOLUME], securityContext=POD_SECURITY)
POD_TEMPLATE = fields("metadata !spec", metadata=META, spec=POD)
CLAIM_SPEC = fields("!accessModes !resources storageClassName", resources=fields("!requests"))
JOB_SPEC = fields("!template backoffLimit completions parallelism completionMode activeDeadlineSeconds ttlSecondsAfterFinished",
                  template=POD_TEMPLATE)
PEER = fields("podSelector namespaceSelector ipBlock", podSelector=SELECTOR, namespaceSelector=SELECTOR)
POLICY_PORT = fields("protocol port endPort")
OBJECTS = {
    ("v1", "Service"): fields("!ports selector clusterIP publishNotReadyAddresses type",
                              ports=[fields("name !port targetPort protocol")]),
    ("policy/v1", "PodDisruptionBudget"): fields("maxUnavailable minAvailable !selector", selector=SELECTOR),
    ("apps/v1", "StatefulSet"): fields("!serviceName replicas podManagementPolicy updateStrategy !selector !template "
                                       "volumeClaimTemplates", updateStrategy=fields("!type rollingUpdate"),
                                       selector=SELECTOR, template=POD_TEMPLATE,
                                       volumeClaimTemplates=[fields("!metadata !spec", metadata=META, spec=CLAIM_SPEC)]),
    ("batch/v1", "Job"): JOB_SPEC,
    ("networking.k8s.io/v1", "NetworkPolicy"): fields(
        "!podSelector policyTypes ingress egress", podSelector=SELECTOR,
        ingress=[fields("from ports", **{"from": [PEER]}, ports=[POLICY_PORT])],
        egress=[fields("to ports", to=[PEER], ports=[POLICY_PORT])]),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): fields(
        "!replicatedJobs network successPolicy failurePolicy suspend startupPolicy",
        network=fields("enableDNSHostnames publishNotReadyAddresses subdomain"),
        successPolicy=fields("!operator targetReplicatedJobs"), failurePolicy=fields("maxRestarts rules"),
        replicatedJobs=[fields("!name !template replicas", template=fields("metadata !spec", spec=JOB_SPEC))]),
}


def check_fields(value, table, where):
    if table is None:
        return
    if isinstance(table, list):
        check(isinstance(value, list), f"{where}: expected a list")
        for i, item in enumerate(value if isinstance(value, list) else []):
            check_fields(item, table[0], f"{where}[{i}]")
        return
    if not isinstance(value, dict):
        problems.append(f"{where}: expected an object, got {value!r}")
        return
    for name, item in value.items():
        if name not in table:
            problems.append(f"{where}.{name}: unknown field")
        else:
            check_fields(item, table[name][1], f"{where}.{name}")
    for name, (is_required, _) in table.items():
        check(not is_required or name in value, f"{where}.{name}: missing")


# --- references between objects ---

def known_flags(program, *args):
    text = subprocess.run([BUILD / "bin" / program, *args, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^  --([a-z-]+)", text, re.M)) | set(re.findall(r"^ *([a-z0-9_.]+) \(", text, re.M))


RANKD, RANKCTL_RUN = known_flags("rankd"), known_flags("rankctl", "run")


def check_command(words, where):
    """Every flag of the programs in a container's command exists."""
    text = " ".join(words)
    for program, flags in (("rankd", RANKD), ("rankctl run", RANKCTL_RUN)):
        for call in re.findall(rf"(?:^|exec |; |&& ){program}\b([^;&]*)", text):
            for flag in re.findall(r"--([a-z_.-]+)", call):
                check(flag in flags, f"{where}: {program} has no flag --{flag}")
            for key in re.findall(r" ([a-z_]+(?:\.[a-z_]+)+)=", call):
                check(key in flags or key.startswith("rpc."), f"{where}: a job has no key {key}")


def check_container(container, pod, claims, where):
    volumes = {volume["name"] for volume in pod.get("volumes", [])} | claims
    for mount in container.get("volumeMounts", []):
        check(mount["name"] in volumes, f"{where}: volume {mount['name']} is not declared")
    ports = {port["containerPort"] for port in container.get("ports", [])}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        if name in container:
            check(container[name]["grpc"]["port"] in ports, f"{where}.{name}: the port is not one of the container's")
    security = container.get("securityContext", {})
    check(security.get("allowPrivilegeEscalation") is False, f"{where}: allowPrivilegeEscalation is not false")
    check(security.get("capabilities", {}).get("drop") == ["ALL"], f"{where}: capabilities are not dropped")
    check(not container["image"].endswith(":latest") and ":" in container["image"], f"{where}: the image has no tag")
    check_command(container["command"], where)


def check_pod(template, claims, where):
    pod = template["spec"]
    check(pod.get("securityContext", {}).get("runAsNonRoot") is True, f"{where}: runs as root")
    check(pod.get("enableServiceLinks") is False, f"{where}: services of a name RANKD_... would set keys of the daemon")
    for container in pod.get("initContainers", []) + pod["containers"]:
        check_container(container, pod, claims, f"{where}/{container['name']}")
    for container in pod["containers"]:
        check("memory" in container.get("resources", {}).get("limits", {}), f"{where}: no limit of memory")
        if container["name"] == "rankd":
            check(pod.get("terminationGracePeriodSeconds", 30) >= 110, f"{where}: shorter than drain.grace and 50 s")
            check("livenessProbe" in container and "readinessProbe" in container, f"{where}: no probes")


def check_object(item, path):
    where = f"{path}: {item.get('kind')} {item.get('metadata', {}).get('name')}"
    table = OBJECTS.get((item.get("apiVersion"), item.get("kind")))
    if table is None:
        problems.append(f"{where}: {item.get('apiVersion')} is not known here")
        return
    check_fields(item, fields("!apiVersion !kind !metadata !spec", metadata=META, spec=table), where)
    check("name" in item.get("metadata", {}), f"{where}: no name")
    spec = item["spec"]
    if item["kind"] == "StatefulSet":
        labels = spec["template"]["metadata"]["labels"]
        check(spec["selector"]["matchLabels"].items() <= labels.items(), f"{where}: selects other pods than it makes")
        check_pod(spec["template"], {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}, where)
    elif item["kind"] == "Job":
        check(spec["template"]["spec"].get("restartPolicy") in ("Never", "OnFailure"), f"{where}: restartPolicy")
        check_pod(spec["template"], set(), where)
    elif item["kind"] == "JobSet":
        names = {job["name"] for job in spec["replicatedJobs"]}
        check(set(spec["successPolicy"]["targetReplicatedJobs"]) <= names, f"{where}: successPolicy names no job")
        for job in spec["replicatedJobs"]:
            check_pod(job["template"]["spec"]["template"], set(), f"{where}/{job['name']}")


def check_kubernetes():
    objects = {}
    for path in sorted((SOURCE / "deploy/kubernetes").glob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            check_object(item, path.name)
            objects[item["kind"], item["metadata"]["name"]] = item
    service, pool = objects["Service", "rankd"], objects["StatefulSet", "rankd"]
    labels = pool["spec"]["template"]["metadata"]["labels"]
    check(pool["spec"]["serviceName"] == "rankd" and service["spec"]["clusterIP"] == "None", "the service is not headless")
    for selector in (service["spec"]["selector"], objects["NetworkPolicy", "rankd"]["spec"]["podSelector"]["matchLabels"],
                     objects["PodDisruptionBudget", "rankd"]["spec"]["selector"]["matchLabels"]):
        check(selector.items() <= labels.items(), f"selector {selector} selects no daemons")
    driver = objects["Job", "rankd-digits"]["spec"]["template"]["spec"]["containers"][0]["command"]
    hosts = f"rankd-[0-{pool['spec']['replicas'] - 1}].rankd:7000"
    check(f"--hosts={hosts}" in driver, f"the driver's hosts are not {hosts}")
    check(len(objects) == 6, f"{len(objects)} objects of Kubernetes, expected 6")


# --- Compose and Docker ---

SERVICE = fields("!image command depends_on volumes read_only tmpfs cap_drop security_opt stop_grace_period restart healthcheck "
                 "hostname networks init profiles environment",
                 healthcheck=fields("!test interval timeout start_period retries"))


def check_compose():
    compose = yaml.safe_load((SOURCE / "deploy/compose/compose.yaml").read_text())
    for name, service in compose["services"].items():
        where = f"compose.yaml: {name}"
        check_fields(service, SERVICE, where)
        check_command(service["command"], where)
        for network in service.get("networks", {}):
            check(network in compose["networks"], f"{where}: network {network} is not declared")
        for other in service.get("depends_on", {}):
            check(other in compose["services"], f"{where}: depends on {other}, which is no service")


def docker_lines(path):
    """The instructions; FROM with the values of the arguments before it."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M)
    lines = [line.split(None, 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    first = [name for name, _ in lines].index("FROM")
    arguments = dict(rest.split("=", 1) for name, rest in lines[:first] if name == "ARG")
    lines[first][1] = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match.group(1)], lines[first][1])
    return lines[first:]


# Images of others that exist, as their publishers list them; rankd:* are built by docs/deploy.md.
PUBLIC_IMAGES = {"debian:12-slim", "nvidia/cuda:13.0.1-runtime-ubuntu24.04"}
OWN_IMAGES = {"rankd:cpu", "rankd:cuda"}


def check_images():
    """Every image of manifests is one that docs/deploy.md builds, and every bundle and package has this version."""
    page = (SOURCE / "docs/deploy.md").read_text()
    built = set(re.findall(r"docker build -f \S+ -t (\S+)", page))
    check(built == OWN_IMAGES, f"docs/deploy.md builds {sorted(built)}")
    for path in [*SOURCE.glob("deploy/**/*.yaml"), *SOURCE.glob("docs/*.md"), SOURCE / "README.md"]:
        for image in re.findall(r"\b(?:image: *|FROM |docker run (?:-\S+ )*)([\w./-]+:[\w.-]+)", path.read_text()):
            check(image in OWN_IMAGES | PUBLIC_IMAGES, f"{path.name}: the image {image} is neither built by the pages nor in their table")
    version = re.search(r"project\(rankd VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    for path in [*SOURCE.glob("docs/*.md"), *SOURCE.glob("deploy/docker/*"), SOURCE / "README.md"]:
        for found in re.findall(r"rankd(?:-driver\w*)?[-_]([0-9]+\.[0-9]+\.[0-9]+)", path.read_text()):
            check(found == version, f"{path.name}: names version {found}, this is {version}")


def check_dockerfile(path):
    lines = docker_lines(path)
    names = [name for name, _ in lines]
    last = {name: rest for name, rest in lines}
    where = path.name
    check(names[0] == "FROM", f"{where}: does not begin with FROM")
    check(last["FROM"] in PUBLIC_IMAGES, f"{where}: FROM {last['FROM']}, which is not known to exist (DL3006: with a version)")
    check(last.get("USER", "root").split(":")[0] not in ("root", "0"), f"{where}: runs as root (DL3002)")
    check(last.get("STOPSIGNAL") == "SIGTERM", f"{where}: STOPSIGNAL is not SIGTERM")
    for name in ("HEALTHCHECK", "CMD", "WORKDIR", "EXPOSE"):
        check(names.count(name) == 1, f"{where}: {name} stands {names.count(name)} times (DL3012, DL4003)")
    check(last["WORKDIR"].startswith("/"), f"{where}: WORKDIR is not absolute (DL3000)")
    check(last["CMD"].startswith("[") and "CMD [" in last["HEALTHCHECK"], f"{where}: CMD is not a list (DL3025)")
    for name, rest in lines:
        check(name != "MAINTAINER", f"{where}: MAINTAINER is deprecated (DL4000)")
        check(name != "ADD" or not re.match(r"https?:", rest), f"{where}: ADD of a URL (DL3020)")
        if name == "RUN":
            check("sudo " not in rest, f"{where}: sudo (DL3004)")
            check(not re.search(r"(^|&& )cd ", rest), f"{where}: RUN cd (DL3003)")
            check("apt-get install" not in rest or ("--no-install-recommends" in rest and "/var/lib/apt/lists" in rest),
                  f"{where}: apt-get (DL3009, DL3015)")
    check_command(json.loads(last["CMD"]), where)
    version = re.search(r"project\(rankd VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
    check(last["ARG"] == f"BUNDLE=rankd-{version}-x86_64", f"{where}: the bundle is not that of version {version}")


check_kubernetes()
check_compose()
check_images()
for dockerfile in sorted((SOURCE / "deploy/docker").glob("Dockerfile.*")):
    check_dockerfile(dockerfile)
ignored = (SOURCE / ".dockerignore").read_text().split("\n")
check("*" in ignored and "!build/rankd-*.tar.gz" in ignored, ".dockerignore: the context is more than the bundle")
for problem in problems:
    print(problem)
sys.exit(1 if problems else 0)
