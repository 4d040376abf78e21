"""test_product.py BUILD_DIR: goal: the targets `product` and `bundle` build every file that an installation copies, also in a
build in which nothing else was built.

Method: the install scripts name files and folders of the build; those that the build makes must be among what the target needs,
by the rules in build.ninja. Exits with 77 for another generator.
"""
import pathlib
import re
import sys

BUILD = pathlib.Path(sys.argv[1]).resolve()


def read_rules():
    """What each file or target of build.ninja is made of, and made together with."""
    text = (BUILD / "build.ninja").read_text().replace("$\n", "")
    needs = {}
    for outputs, inputs in re.findall(r"^build (.*?): \w+(.*)$", text, re.M):
        for output in outputs.split():
            needs.setdefault(output, set()).update(set(f"{outputs} {inputs}".split()) - {"|", "||"})
    return needs


def everything_for(target, needs):
    found, left = set(), [target]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += needs.get(name, ())
    return found


def main():
    if not (BUILD / "build.ninja").exists():
        print("skipped: not a build of ninja")
        sys.exit(77)
    needs = read_rules()
    outputs = {name for name in needs if not name.startswith("${cmake_ninja_workdir}")}
    copied = set()
    for script in BUILD.glob("**/cmake_install.cmake"):
        for path in re.findall(rf'"{re.escape(str(BUILD))}/([^"]+)"', script.read_text()):
            copied |= {name for name in outputs if name == path or name.startswith(f"{path.rstrip('/')}/")}
    copied = {name for name in copied if not name.endswith("cmake_install.cmake")}
    assert {"bin/rankd", "bin/rankctl", "manual/rankctl.1", "python/rankd/methods.py"} <= copied, f"found only {sorted(copied)}"
    for target in ("product", "bundle"):
        missing = sorted(copied - everything_for(target, needs))
        assert not missing, f"{target} does not build {', '.join(missing)}"
    print(f"{len(copied)} files that are built and installed")


main()
