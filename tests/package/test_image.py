"""test_image.py BUNDLE SOURCE_DIR: goal: deploy/docker/Dockerfile.cpu makes an image whose daemon starts, is healthy and stops.

Method: the Dockerfile's instructions are done by hand on a new Debian of debootstrap, which is what its base image is made by;
CMD and HEALTHCHECK run there as its user, with a root that is read-only. Exits with 77 where that is not possible.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

BUNDLE, SOURCE = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
IN_CHROOT = """
mount --make-rprivate / && mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" &&
mount -t tmpfs tmpfs "$1/tmp" && mount -t tmpfs -o uid=10001,gid=10001,mode=750 tmpfs "$1/run/rankd/0" &&
ip link set lo up && mount -o remount,bind,ro "$1" && shift && exec "$@"
"""


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def instructions():
    text = re.sub(r"^#.*\n", "", (SOURCE / "deploy/docker/Dockerfile.cpu").read_text(), flags=re.M)
    return [line.split(None, 1) for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]


def make_base(root, image):
    suite = {"12": "bookworm", "13": "trixie"}[re.fullmatch(r"debian:(\d+)-slim", image).group(1)]
    made = subprocess.run(["debootstrap", "--variant=minbase", suite, root], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"no mirror of {suite} can be reached: {made.stdout[-200:]}")


def build(root):
    """Returns what the image says about its containers."""
    variables, config = {}, {"ENV": {}}
    for name, rest in instructions():
        rest = re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match.group(1), match.group(0)), rest)
        if name == "FROM":
            make_base(root, rest)
        elif name == "ARG":
            variables.update([rest.split("=", 1)])
        elif name == "ENV":
            config["ENV"].update(word.split("=", 1) for word in rest.split())
        elif name == "ADD":
            source, target = rest.split()
            assert source == f"build/{BUNDLE.name}", f"ADD of {source}, the build makes {BUNDLE.name}"
            subprocess.run(["tar", "-C", f"{root}{target}", "-xzf", BUNDLE], check=True)
        elif name == "RUN":
            subprocess.run(["chroot", root, "sh", "-ec", rest], check=True)
        else:
            config[name] = rest
    return config


def start(root, config, command, **kwargs):
    env = [f"{name}={value}" for name, value in config["ENV"].items()]
    inner = ["chroot", f"--userspec={config['USER']}", str(root), "env", "-i", "-C", config["WORKDIR"], *env, *command]
    return subprocess.Popen([*kwargs.pop("enter"), *inner], **kwargs)


def check_container(root, config):
    daemon = start(root, config, json.loads(config["CMD"]),
                   enter=["unshare", "--mount", "--net", "sh", "-c", IN_CHROOT, "sh", str(root)])
    try:
        health = json.loads(config["HEALTHCHECK"].split("CMD ", 1)[1])
        enter = ["nsenter", "-t", str(daemon.pid), "--mount", "--net"]
        deadline = time.monotonic() + 60
        while start(root, config, health, enter=enter).wait(30) != 0:
            assert daemon.poll() is None, f"the daemon has ended with {daemon.returncode}"
            assert time.monotonic() < deadline, "the container is not healthy after 60 s"
            time.sleep(0.5)
        assert start(root, config, ["rankctl", "version"], enter=enter).wait(30) == 0
        status = pathlib.Path(f"/proc/{daemon.pid}/status").read_text()
        assert re.search(r"^Uid:\s+10001\s+10001\s", status, re.M), "the daemon runs as another user"
        daemon.terminate()
        assert daemon.wait(60) == 0, f"stopped with {daemon.returncode}"
    finally:
        if daemon.poll() is None:
            daemon.kill()


def main():
    if subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True).returncode != 0:
        skip("only root can make an image by hand")
    for program in ("debootstrap", "ip"):
        if not shutil.which(program):
            skip(f"{program} is not installed")
    root = pathlib.Path(tempfile.mkdtemp())
    root.chmod(0o755)
    try:
        config = build(root)
        check_container(root, config)
        print("image: built, healthy, stopped")
    finally:
        shutil.rmtree(root)


main()
