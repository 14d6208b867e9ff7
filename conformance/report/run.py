#!/usr/bin/env python3
"""Browser test of the page that `mage report` writes.

    conformance/report/run.py [--mage PROGRAM] [--report report.html] [--shots FOLDER]

Runs a small sweep and creates its report (or uses an existing one). Opens the page from disk in Chromium, light, dark and at the
width of a phone: follows its links and goes back, sorts and scrolls tables by mouse and keyboard, filters and opens transcripts, and
takes screenshots of every section. The page must not log errors, make network requests, or overflow the window.

Needs Chromium (Debian: apt-get install chromium) and node with npm, which installs playwright-core into a temporary folder. Prints
SKIPPED and exits with 0 if one of them is missing.
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
description = "a small sweep for the browser test"
policy = "tiny policy"
tasks = 24
episodes = 10
seeds = [0, 1]
set = ["optim.updates=4", "rollout.groups=4", "warmstart.steps=10", "warmstart.batch_size=8", "eval.tasks=12",
       "eval.final_tasks=12", "eval.every=1", "trajectories.every=1"]
[[env]]
name = "kuhn"
task_sets = ["kuhn"]
recipe = ["kuhn"]
agents = ["random", "nash", "bayes"]
[[env]]
name = "sokoban"
task_sets = ["sokoban"]
agents = ["random", "optimal"]
[[method]]
name = "MAGE"
train = ["mage"]
[[ablation]]
name = "cumulative"
set = ["method.credit.assignment=cumulative"]
"""


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(0)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--mage", default=str(ROOT / "target/debug/mage"), help="the mage binary")
    p.add_argument("--report", help="an existing page")
    p.add_argument("--shots", help="folder for the screenshots")
    args = p.parse_args()
    browser = next((found for name in ["chromium", "chromium-browser", "google-chrome"] if (found := shutil.which(name))), None)
    if not browser:
        skip("Chromium not found")
    if not shutil.which("npm"):
        skip("npm not found")
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
        shutil.copy(HERE / "browser_test.js", folder / "browser_test.js")
        command = ["node", "browser_test.js", browser, str(page), str(shots)]
        sys.exit(subprocess.run(command, cwd=folder, timeout=300).returncode)


if __name__ == "__main__":
    main()
