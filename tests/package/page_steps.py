"""page_steps.py PAGE DIR: writes the commands of docs/deploy.md's page for two hosts as DIR/NN.WHERE, in order: WHERE is login,
nodes or node1.

A line with a prompt is a step; lines without one that follow it belong to it (here-documents).
"""
import pathlib
import re
import sys

page, out = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2])
section = re.search(r"^## Two hosts with eight GPUs each\n(.*?)^## ", page, re.S | re.M).group(1)
steps = []
for block in re.findall(r"^   ```\n(.*?)^   ```$", section, re.S | re.M):
    for line in block.splitlines():
        line = line.removeprefix("   ")
        prompt = re.match(r"(login\$|nodes#|node1#) (.*)", line)
        if prompt:
            steps.append([prompt.group(1)[:-1], prompt.group(2)])
        else:
            steps[-1][1] += "\n" + line
assert len(steps) >= 12, f"{len(steps)} steps on the page"
for number, (where, text) in enumerate(steps):
    (out / f"{number:02}.{where}").write_text(text + "\n")
