"""test_contributing.py SOURCE_DIR [build]: goal: what is added by exactly the files that CONTRIBUTING.md names works.

Method: adds a loss, an advantage estimator, a reward, a logger, a model family and a worker method, each named "example", from the templates in
contributing/ to a copy of the tree. Each may touch the files of its row in the table of the page and no others. With `build`, the copy
is built; a job trains a model of the family with the loss, the estimator, the reward and the logger, and the method is called on a daemon.
Exits with 77 without git.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1]).resolve()
TEMPLATES = pathlib.Path(__file__).resolve().parent / "contributing"
# For each row of the page: the template of its own file, and what is inserted in front of a line (a regular expression) of a table.
ADDITIONS = {
    "a loss": ("loss_example.c", [
        ("base/config/losses.def", r"    X\(vanilla, ",
         '    X(example, POLICY, "example", RK_LOSS_BIT(RK_LOSS_ROLLOUT_LOG_PROBS) | RK_LOSS_BIT(RK_LOSS_ADVANTAGES), RK_IS_WEIGHTS) \\'),
        ("proto/columns.def", r"    X\(arg, policy, ",
         '    X(arg, policy, "rollout_log_probs", F32, "B,R", false, "of the rollout; needed with loss_mode=example") \\')]),
    "an advantage estimator": ("adv_example.c", [("rl/algo/advantages.def", r"X\(gae\)", "X(example)")]),
    "a reward": ("reward_example.c", [("rl/rewards/rewards.def", r"    X\(gsm8k\)", "    X(example) \\")]),
    "a logger": ("logger_example.c", [("rl/loggers/loggers.def", r"    X\(file\)", "    X(example) \\")]),
    "a model family": ("family_example.c", [("base/format/families.def", r"X\(llama\)", "X(example)")]),
    "a worker method": ("m_example.c", [
        ("proto/methods.def", r"    X\(GET_MESH_INFO, ",
         '    X(EXAMPLE, example, RK_ROLE_ANY, "ONE_TO_ALL", "", ALL, RK_MF_PURE | RK_MF_ANY_STATE, none, example, example, \\\n'
         '      "count") \\'),
        ("proto/columns.def", r"    S\(prompts\)", "    S(example) \\"),
        ("proto/columns.def", r'    X\(arg, prompts, "prompts"', '    X(arg, example, "numbers", I64, "B", true, "0, 1, ...") \\'),
        ("proto/options.def", r"    S\(start_profile\)", "    S(example) \\"),
        ("proto/options.def", r'    X\(arg, start_profile, "ranks"', '    X(arg, example, "count", INT, "3", "rows of the result") \\')]),
}
JOB = "examples/digits/grpo.json"


def fail(text):
    sys.exit(f"test_contributing: {text}")


def copy_tree(to):
    names = subprocess.run(["git", "-C", SOURCE, "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, text=True)
    if names.returncode != 0:
        print("skipped: not a git checkout")
        sys.exit(77)
    for name in filter(None, names.stdout.split("\0")):
        if (SOURCE / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(SOURCE / name, to / name)


def named_by_the_page():
    """Paths in the second column of each row of the table, with `example` for NAME."""
    rows = {}
    for line in (SOURCE / "CONTRIBUTING.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) >= 4 and cells[1].startswith(("a ", "an ")):
            paths = re.findall(r"`([\w/.]+/[\w.]+\.\w+)`", cells[2])
            rows[cells[1]] = {path.replace("NAME", "example") for path in paths}
    return rows


def insert(path, before, text):
    lines = path.read_text().splitlines(keepends=True)
    at = next((i for i, line in enumerate(lines) if re.match(before, line)), None)
    if at is None:
        fail(f"{path}: no line matches {before}")
    lines.insert(at, text + "\n")
    path.write_text("".join(lines))


def add(tree, what, named):
    """Returns the files that were touched."""
    template, rows = ADDITIONS[what]
    own = [path for path in named if pathlib.PurePath(path).name == template]
    if len(own) != 1:
        fail(f"CONTRIBUTING.md, {what}: expected one path whose file is {template}, got {sorted(named)}")
    if (tree / own[0]).exists():
        fail(f"{own[0]} exists")
    shutil.copy2(TEMPLATES / template, tree / own[0])
    for path, before, text in rows:
        insert(tree / path, before, text)
    return {own[0]} | {path for path, _, _ in rows}


def run(*command, code=0, cwd=None):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd)
    if done.returncode != code:
        fail(f"{' '.join(map(str, command))}: exit code {done.returncode}, expected {code}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(what, actual, expected, tolerance=0.0):
    print(f"{what}: {actual}")
    if abs(actual - expected) > tolerance:
        fail(f"{what}: expected {expected} +- {tolerance}, got {actual}")


def build(tree):
    out = tree / "build" / "contributing"
    run("cmake", "-S", tree, "-B", out, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1", "-DRK_TESTS=OFF",
        "-DRK_CUDA=OFF")
    run("cmake", "--build", out, "--target", "rankd", "rankctl")
    return out / "bin"


def check_choices(bin_dir, tree):
    text = run(bin_dir / "rankctl", "config", "check", tree / JOB, "actor_rollout_ref.actor.policy_loss.loss_mode=nonsense", code=2)
    if "|example|" not in f"|{re.sub(r'[^a-z_]+', '|', text)}|":
        fail(f"the choices of loss_mode lack example: {text}")
    text = run(bin_dir / "rankctl", "run", "--help")
    for key in "reward.name", "trainer.logger":
        if not re.search(rf"^ *{key} .* example ", text, re.M):
            fail(f"the help of {key} lacks example")


def write_job(tree, temp):
    """The digits job for one daemon, two steps and the additions."""
    example = tree / "examples" / "digits"
    model = json.loads((example / "config.json").read_text()) | {"model_type": "example"}
    (temp / "config.json").write_text(json.dumps(model))
    job = json.loads((tree / JOB).read_text())
    job["data"] |= {"train_files": [str(example / "train.jsonl")], "train_batch_size": 6}
    actor_rollout_ref, actor = job["actor_rollout_ref"], job["actor_rollout_ref"]["actor"]
    actor_rollout_ref["model"] = {"hf_config_path": str(temp / "config.json"), "tokenizer_path": str(example / "tokenizer.json")}
    actor_rollout_ref["rollout"]["n"] = 2
    actor["megatron"]["tensor_model_parallel_size"] = 1
    actor |= {"ppo_mini_batch_size": 6, "policy_loss": {"loss_mode": "example"}}
    job |= {"algorithm": {"adv_estimator": "example"}, "reward": {"name": "example"}}
    job["trainer"] |= {"total_training_steps": 2, "logger": ["console", "example"]}
    (temp / "job.json").write_text(json.dumps(job))
    return temp / "job.json"


def check_training(bin_dir, job, temp):
    """3 for every response, half of it as advantage; -A r of the first update, whose ratios are 1."""
    text = run(bin_dir / "rankctl", "run", job, "--local", "1", f"--run-dir={temp / 'run'}")
    if "example: step 2 has " not in text:
        fail(f"the logger wrote nothing: {text}")
    steps = [json.loads(line) for line in (temp / "run" / "metrics.jsonl").read_text().splitlines()]
    first = next(step for step in steps if "actor/pg_loss" in step)
    expect("critic/score/mean", first["critic/score/mean"], 3.0)
    expect("critic/advantages/mean", first["critic/advantages/mean"], 1.5)
    expect("actor/pg_loss", first["actor/pg_loss"], -1.5, 1e-3)


def check_method(bin_dir, job, temp):
    rankctl, out, address = bin_dir / "rankctl", temp / "out.safetensors", f"unix:{temp}/rankd.sock"
    if "example" not in run(rankctl, "methods") or "count" not in run(rankctl, "describe", "example"):
        fail("rankctl methods or describe lack the method")
    daemon = subprocess.Popen([bin_dir / "rankd", f"--rpc.listen={address}", f"--flight.dir={temp}"], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
    try:
        if "listening" not in daemon.stdout.readline():
            fail("rankd does not listen")
        run(rankctl, "call", "actor.example", "--hosts", address, "--job", job, "--opt", "count=5", "--out", out)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
    data = out.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    at = json.loads(data[8:begin])["numbers"]["data_offsets"]
    numbers = struct.unpack("<5q", data[begin + at[0]:begin + at[1]])
    print("numbers:", *numbers)
    if numbers != (0, 1, 2, 3, 4):
        fail(f"expected 0 to 4, got {numbers}")


def main():
    if not shutil.which("git"):
        print("skipped: git is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="rankd-contributing-", dir=os.environ.get("TMPDIR")) as name:
        temp, tree = pathlib.Path(name), pathlib.Path(name) / "tree"
        copy_tree(tree)
        named = named_by_the_page()
        for what in ADDITIONS:
            if what not in named:
                fail(f"CONTRIBUTING.md has no row '{what}'")
            touched = add(tree, what, named[what])
            if touched != named[what]:
                fail(f"{what}: the page names {sorted(named[what])}, needed are {sorted(touched)}")
            print(f"{what}: {' '.join(sorted(touched))}")
        if sys.argv[2:] == ["build"]:
            bin_dir = build(tree)
            check_choices(bin_dir, tree)
            job = write_job(tree, temp)
            check_training(bin_dir, job, temp)
            check_method(bin_dir, job, temp)


main()
