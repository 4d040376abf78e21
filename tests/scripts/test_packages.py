"""test_packages.py SOURCE_DIR: goal: scripts/packages.txt names what the build, the tests and the commands of the pages use, so
that a Debian that has nothing else builds and passes.

Method: dpkg tells which package has each program that CMake, scripts, tests and pages call, each pkg-config module, header, library and
Python module of the sources. It must be one that every Debian has, or one of the list or of their dependencies. What this machine
does not have is not checked here, and fails on a new machine by itself. Exits with 77 without dpkg.
"""
import ast
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(sys.argv[1]).resolve()
# Programs of tests that skip or shorten themselves where it is missing, of another machine than ours (units, containers,
# pages), what shells have themselves, and what CUDA's toolkit brings.
OPTIONAL = {"clang", "debootstrap", "docker", "kubectl", "lintian", "nvcc", "cuobjdump", "compute-sanitizer", "prometheus", "scontrol",
            "systemctl", "systemd-analyze", "systemd-sysusers", "kill", "userdel", "groupdel", "zsh", "gdb", "perf", "valgrind"}
OPTIONAL_MODULES = {"datasets", "matplotlib", "pandas", "pyarrow", "tensorboard", "tokenizers", "torch", "transformers", "trl", "verl",
                    "wandb"}
# Programs that are called by those of the list, where packages only recommend them: cpack for Debian packages, git.
INDIRECT = {"cmake/RankdPackage.cmake": ["file", "dpkg-shlibdeps", "objcopy", "strip", "xz"]}
MODULES = ("base/", "proto/", "kernels/", "engine/", "dispatch/", "worker/", "daemon/", "text/", "driver/",
           "rl/", "cmd/")
COMMAND = re.compile(r"(?:^|[|;&(`]|\$\(|\b(?:then|do|else|if|while|until|exec|!|env|sudo|nice)\s)\s*(?:\w+=\S*\s+)*([a-z][\w.+-]*)(?=[\s;)|&]|$)", re.M)


def tracked(*patterns):
    """Files of the tree, without generated folders."""
    for pattern in patterns:
        for path in SOURCE.glob(pattern):
            parts = path.relative_to(SOURCE).parts
            if path.is_file() and "build" not in parts and not any(part.startswith(".") for part in parts):
                yield path


def run(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def owners(paths):
    """The package of each file, where dpkg knows it; merged /usr has two names of a file."""
    real = {str(pathlib.Path(path).resolve()): path for path in paths}
    found = {}
    names = [name for path in real for name in {path, path.removeprefix("/usr")}]
    for line in run("dpkg-query", "-S", *names).splitlines():
        package, _, name = line.partition(": ")
        path = real.get(name) or real.get(f"/usr{name}")
        if path and not package.startswith("diversion"):
            found[path] = package.partition(":")[0].partition(",")[0]
    return found


class Packages:
    """What an installation of the list has: every Debian's packages, those of the list, and their dependencies."""

    def __init__(self, text):
        self.rows, self.providers = {}, {}
        form = "${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
        for line in run("dpkg-query", "-W", "-f", form).splitlines():
            name, essential, priority, depends, provides = line.split("\t")
            self.rows[name] = (essential == "yes" or priority == "required" or name == "apt", depends)
            for virtual in re.findall(r"[\w.+-]+", re.sub(r"\([^)]*\)", "", provides)):
                self.providers.setdefault(virtual, []).append(name)
        self.installed = set()
        for name, (is_base, _) in self.rows.items():
            if is_base:
                self.add(name)
        for name in text.splitlines():
            if not name.startswith("#"):
                self.add(name)

    def add(self, name):
        if name in self.installed or (name not in self.rows and name not in self.providers):
            return
        for name in [name] if name in self.rows else self.providers[name][:1]:
            self.installed.add(name)
            for group in self.rows[name][1].split(","):
                choices = [re.sub(r"[:(].*", "", text).strip() for text in group.split("|")]
                for choice in choices:
                    if choice in self.rows or choice in self.providers:
                        self.add(choice)
                        break


def programs():
    """(file, program) of shell scripts, of lists in Python, and of CMake."""
    for path in tracked("scripts/*.sh", "tools/*.sh", "tests/**/*.sh", "clients/**/*.sh", "examples/**/*.sh"):
        text = re.sub(r"(?m)^\s*#.*$|\\\n", "", path.read_text())
        text = re.sub(r"<<-?'?(\w+)'?.*?^\1$", "", text, flags=re.S | re.M)  # other machines', or files
        own = set(re.findall(r"(?m)^\s*(\w+)\(\)", text)) | set(re.findall(r"command -v (\S+)", text))
        yield from ((path, name) for name in COMMAND.findall(re.sub(r"'[^']*'", "''", text)) if name not in own)
    for path in tracked("tests/**/*.py", "clients/**/*.py", "tools/*.py"):
        text = path.read_text()
        own = set(re.findall(r"which\(\"(\S+?)\"", text))
        yield from ((path, name) for name in re.findall(r"\"-m\", \"(\w+)\"", text))
        calls = re.findall(r"(?:run|call|check_call|check_output|Popen)\(\s*\[\"([a-z][\w.+-]*)\"", text)
        yield from ((path, name) for name in calls if name not in own)
    for path in tracked("CMakeLists.txt", "**/CMakeLists.txt", "cmake/*.cmake"):
        text = path.read_text()
        yield from ((path, name) for name in re.findall(r"find_program\(\w+ ([\w.+-]+)", text))
        yield from ((path, name) for name in re.findall(r"\bCOMMAND (?:env )?([a-z][\w.+-]*)[ )\n]", text))
    for path in tracked("*.md", "docs/*.md", "examples/**/*.md", "clients/**/*.md"):
        text = path.read_text()
        blocks = "\n".join(re.findall(r"^ *```\n(.*?)^ *```", text, re.S | re.M))
        lines = "\n".join(re.findall(r"^ *(?:\w*[$#]) (.*)", blocks, re.M))
        yield from ((path, name) for name in COMMAND.findall(lines) if f"package {name}" not in text)
    yield from ((SOURCE / path, name) for path, names in INDIRECT.items() for name in names)


def files():
    """(file, what it uses, path of it on this machine)."""
    for path, name in programs():
        where = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if where and name not in OPTIONAL:
            yield path, name, where
    folders = [pathlib.Path("/usr/lib/pkgconfig"), pathlib.Path("/usr/share/pkgconfig"), *pathlib.Path("/usr/lib").glob("*-linux-gnu/pkgconfig")]
    for path in tracked("cmake/*.cmake"):
        for module in re.findall(r"pkg_check_modules\(\w+ [A-Z_ ]*([a-z][\w.+-]*?)(?:>=[\d.]+)?\)", path.read_text()):
            yield from ((path, f"{module}.pc", where / f"{module}.pc") for where in folders if (where / f"{module}.pc").exists())
    for path in tracked("*/**/*.[ch]"):
        for header in set(re.findall(r"^#include <([\w/.-]+)>", path.read_text(), re.M)):
            where = pathlib.Path("/usr/include") / header
            if where.exists():
                yield path, header, where
    for path in tracked("tests/**/*.py", "clients/**/*.py", "share/**/*.py"):
        if "gen" not in path.relative_to(SOURCE).parts:  # makes golden files; its page names the packages
            yield from ((path, name, where) for name, where in modules(path))


def modules(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
            [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in (name.partition(".")[0] for name in names):
            for where in [f"/usr/lib/python3/dist-packages/{name}", f"/usr/lib/python3/dist-packages/{name}.py"]:
                where = pathlib.Path(where)
                where = where / "__init__.py" if where.is_dir() else where
                if where.exists() and name not in OPTIONAL_MODULES:
                    yield name, where


def is_product(path, what):
    """Whether quickstart.sh's build or run uses it."""
    return path.startswith(MODULES) and path.endswith((".c", ".h")) or path in ("scripts/quickstart.sh", "scripts/bootstrap.sh") or \
        path in ("cmake/RankdDependencies.cmake", "cmake/RankdVersion.cmake") and what not in ("cmocka.pc", "libprotobuf-c.pc", "protoc-c", "python3")


def main():
    if not shutil.which("dpkg-query"):
        print("skipped: no dpkg-query")
        sys.exit(77)
    text = (SOURCE / "scripts/packages.txt").read_text()
    head, mark, _ = text.partition("\n# tests")
    assert mark, "scripts/packages.txt has no line '# tests'"
    building, everything = Packages(head), Packages(text)
    used = list(files())
    package_of = owners({str(where) for _, _, where in used})
    lacking = {}
    for path, what, where in used:
        package = package_of.get(str(where))
        short = str(path.relative_to(SOURCE))
        packages = building if is_product(short, what) else everything
        if package and package not in packages.installed:
            lacking.setdefault((package, what), short)
    for (package, what), path in sorted(lacking.items()):
        part = "its part for builds in " if is_product(path, what) else ""
        print(f"{path}: uses {what} of package {package}, which {part}scripts/packages.txt does not bring")
    print(f"{len(package_of)} files of {len(set(package_of.values()))} packages are used")
    # The search itself works: a few that are known.
    for name in ("file", "cmake", "ip", "protoc-c", "jansson.pc", "grpc/grpc.h", "numpy"):
        assert any(what == name for _, what, _ in used) or not shutil.which("cmake"), f"the search has not found {name}"
    sys.exit(1 if lacking else 0)


main()
