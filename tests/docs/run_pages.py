"""run_pages.py SOURCE_DIR [BUILD_DIR]: goal: the commands of the pages work as they are written. Method: the blocks behind a line
`<!-- run -->` run in bash in a copy of the sources, page by page, with the programs of BUILD_DIR where a build has them
(build/bin, build/python). Without BUILD_DIR the copy is a clean one: blocks behind `<!-- run: long -->` run too, which build,
install and train. Afterwards there is no file that git neither knows nor ignores.

In a block with the prompt $ the lines with it are the commands, with those that continue them; in others every line is. A daemon that
a line with & at its end starts runs until the page ends; the next line waits until it listens. Exits with 77 without git.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(sys.argv[1]).resolve()
BUILD = pathlib.Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
KINDS = ("", "long")
IN_BACKGROUND = re.compile(r"&(?: *done)? *(?:#.*)?$", re.M)
# Waits until all daemons of the page listen.
PRELUDE = """set -eu
settle() {
    for try in $(seq 600); do
        [ "$(grep -c 'rankd: listening on' "$PAGE_OUTPUT")" -lt "$(jobs -pr | wc -l)" ] || return 0
        sleep 0.1
    done
    echo "the daemons do not listen" && return 1
}
"""
BLOCK = re.compile(r"^( *)<!-- run(?:: (\w+))? -->\n+ *```\w*\n(.*?)^ *```$", re.S | re.M)
PAGE_S = 300 if BUILD else 3600


def commands(block):
    lines = block.splitlines()
    prompts = [re.match(r" *[$] (.*)", line) for line in lines]
    if any(prompts):
        chosen, continues = [], False
        for line, prompt in zip(lines, prompts):
            if prompt or continues:
                chosen.append(prompt.group(1) if prompt else line)
                continues = chosen[-1].endswith("\\")
        block = "\n".join(chosen)
    return IN_BACKGROUND.sub(lambda match: f"{match.group(0)}\nsettle", block)


def blocks_of(page):
    for _, kind, block in BLOCK.findall(page.read_text()):
        assert kind in KINDS, f"{page}: <!-- run: {kind} -->, expected one of {KINDS}"
        if kind == "" or not BUILD:
            yield commands(block)


def copy_sources(folder):
    """Files as git has them, with uncommitted changes."""
    def git(*arguments):
        return subprocess.run(["git", "-C", SOURCE, *arguments], check=True, capture_output=True, text=True).stdout
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", SOURCE, folder], check=True)
    for name in filter(None, git("ls-files", "-z", "--modified", "--others", "--exclude-standard").split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (SOURCE / name).exists():
            shutil.copy2(SOURCE / name, target)
        else:
            target.unlink()
    author = ["-c", "user.name=test", "-c", "user.email=test@rankd.invalid"]
    for arguments in (["add", "-A"], [*author, "commit", "-q", "--allow-empty", "-m", "as tested"]):
        subprocess.run(["git", "-C", folder, *arguments], check=True)


def run(page, text, folder, environment):
    """The page's commands in one shell; programs in the background end with it."""
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile("w+") as output:
        shell = subprocess.Popen(["bash", "-c", f"{PRELUDE}{text}\n"], cwd=folder, start_new_session=True,
                                 env={**environment, "PAGE_OUTPUT": output.name},
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = shell.wait(PAGE_S)
        except subprocess.TimeoutExpired:
            code = f"none after {PAGE_S} s"
        try:
            os.killpg(shell.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        shell.wait(60)
        output.seek(0)
        print(f"{page}: {len(text.splitlines())} lines, exit code {code}, {time.monotonic() - begin:.0f} s", flush=True)
        if code != 0:
            print(f"--- commands:\n{text}\n--- printed:\n{output.read()}")
    return code == 0


def main():
    enter = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if "RK_PAGES_INNER" not in os.environ and subprocess.run([*enter, "true"], capture_output=True).returncode == 0 and BUILD:
        # The pages' ports are free in a network of one's own.
        inner = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-B", *sys.argv]
        sys.exit(subprocess.call([*enter, *inner], env={**os.environ, "RK_PAGES_INNER": "1"}))
    if not shutil.which("git") or not (SOURCE / ".git").exists():
        print("skipped: the sources are not a repository of git")
        sys.exit(77)
    pages = sorted(SOURCE.glob("*.md")) + sorted(path for folder in ("docs", "examples", "clients") for path in (SOURCE / folder).rglob("*.md"))
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work) / "rankd"
        copy_sources(folder)
        if BUILD:
            (folder / "build").mkdir()
            for name in ("bin", "lib", "python"):
                (folder / "build" / name).symlink_to(BUILD / name)
        good = count = 0
        path = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        for page in pages:
            text = "\n".join(blocks_of(page))
            if text:
                count += 1
                # README says how to find the programs; the other pages expect that.
                where = path if page.name == "README.md" and page.parent == SOURCE else f"{folder}/build/bin:{path}"
                good += run(page.relative_to(SOURCE), text, folder, {**os.environ, "TMPDIR": work, "HOME": work, "PATH": where})
        assert count >= 3, f"only {count} pages have blocks behind <!-- run -->"
        left = subprocess.run(["git", "-C", folder, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
        print(f"left in the sources:\n{left}" if left else f"{good} of {count} pages")
        sys.exit(0 if good == count and not left else 1)


main()
