#!/usr/bin/env python3
"""Does the page of `mage report` work in a real browser?

    conformance/report/run.py [--mage PROGRAM] [--report report.html] [--shots FOLDER]

Makes a small sweep and its report (or takes a report that is there), opens the page from the disk in Chromium, light, dark and as
narrow as a phone, without a network: switches tabs by mouse and by keys, turns the picture of states and actions by drag and by
keys, filters and opens transcripts, and takes a screenshot of every part. Nothing may be logged as an error, asked of a network,
or run out of the window on a phone.

Needs Chromium (Debian: apt-get install chromium) and node with npm, which fetches playwright-core into a temporary folder. Exits
with 0 and says SKIPPED where one of them is missing.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GRID = """
about = "a small sweep for the browser test"
player = "tiny policy"
tasks = 24
episodes = 10
seeds = [0, 1]
set = ["optim.updates=4", "rollout.groups=4", "warmstart.steps=10", "warmstart.batch_size=8", "eval.tasks=12",
       "eval.final_tasks=12", "eval.every=1", "trajectories.every=1"]
[[env]]
name = "kuhn"
panels = ["kuhn"]
recipe = ["kuhn"]
agents = ["random", "nash", "bayes"]
[[env]]
name = "sokoban"
panels = ["sokoban"]
agents = ["random", "optimal"]
[[method]]
name = "MAGE"
train = ["mage"]
[[ablation]]
name = "cumulative"
set = ["method.credit.assignment=cumulative"]
"""


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(0)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", default=str(ROOT / "target/debug/mage"), help="the program")
    p.add_argument("--report", help="a page that is there already")
    p.add_argument("--shots", help="keep screenshots in this folder")
    args = p.parse_args()
    browser = next((found for name in ["chromium", "chromium-browser", "google-chrome"] if (found := shutil.which(name))), None)
    if not browser:
        skip("there is no Chromium")
    if not shutil.which("npm"):
        skip("there is no npm")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        installed = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "playwright-core"], cwd=folder,
                                   capture_output=True, text=True)
        if installed.returncode:
            skip(f"playwright-core cannot be installed: {installed.stderr.strip().splitlines()[-1:]}")
        page = args.report and Path(args.report).resolve()
        if not page:
            (folder / "grid.toml").write_text(GRID)
            run = lambda *command: subprocess.run([args.mage, *command], cwd=folder, check=True)
            run("sweep", "grid.toml", "--out", "sweep")
            run("report", "sweep", "--out", "page")
            page = folder / "page/report.html"
        shots = Path(args.shots).resolve() if args.shots else folder / "shots"
        shots.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "look.js", folder / "look.js")
        command = ["node", "look.js", browser, str(page), str(shots)]
        sys.exit(subprocess.run(command, cwd=folder, timeout=300).returncode)


if __name__ == "__main__":
    main()
