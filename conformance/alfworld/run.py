#!/usr/bin/env python3
"""Differential test of mage's ALFWorld against TextWorld, on generated and official games.

    conformance/alfworld/run.py --data DIR

Creates a virtual environment with TextWorld (once; needs a C++ compiler and a few minutes), exports generated games with
`mage`, plays these and official games in TextWorld, and replays all recordings with `mage env conform`. The expert's commands
must win every generated game in TextWorld; every observation, list of admissible commands and won flag must be equal.

DIR contains official games: `json_2.1.1/` or archives of it (`.tar`, `.tar.xz`, `.tar.zst`).
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
REQUIREMENTS = ["textworld[pddl]==1.7.0", "zstandard==0.25.0"]
# zstd window of the training games' archive, which exceeds zstd's default limit.
ZSTD_WINDOW = 1 << 27


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--data", type=Path, required=True, help="directory of official games")
    p.add_argument("--generated", type=int, default=200, help="number of generated games")
    p.add_argument("--official", type=int, default=50, help="number of official games")
    p.add_argument("--steps", type=int, default=30, help="random commands per game")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    p.add_argument("--mage", type=Path, help="path of the mage binary; default: build it")
    p.add_argument("--work", type=Path, help="directory for games and recordings; an interrupted run resumes from it")
    p.add_argument("--venv", type=Path, default=HERE / ".venv", help="virtual environment for TextWorld")
    return p.parse_args()


def enter_venv(path):
    """Re-executes the script in the virtual environment, which is created if necessary."""
    python = path / "bin" / "python"
    if Path(sys.prefix).resolve() == path.resolve():
        return
    if not python.exists():
        venv.create(path, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS], check=True)
    os.execv(python, [str(python), *sys.argv])


def assign_names(infos):
    """Sets display names. Among equal names, numbers decrease in the order of identifiers."""
    left = {}
    stems = {}
    for identifier in sorted(infos):
        stem, bar, _ = identifier.partition("_bar_")
        if bar:
            stems[identifier] = stem + ("basin" if "basin" in identifier else "")
            left[stems[identifier]] = left.get(stems[identifier], 0) + 1
    for identifier in sorted(stems):
        stem = stems[identifier]
        infos[identifier].name = f"{stem} {left[stem]}"
        left[stem] -= 1


def choose(rng, admissible, step):
    """Chooses mostly commands that change the state, and sometimes invalid ones."""
    if rng.random() < 0.06:
        wrong = ["go to nowhere 1", "Look", "take", "", "dance", rng.choice(admissible).upper(), rng.choice(admissible) + " now"]
        return rng.choice(wrong)
    if rng.random() < 0.05:
        return f"  {rng.choice(admissible)} "
    no_effect = ("go to", "look", "inventory", "help", "examine")
    effective = [c for c in admissible if not c.startswith(no_effect)]
    if effective and rng.random() < 0.55:
        return rng.choice(effective)
    return rng.choice(admissible)


def record(job):
    """Plays a game in TextWorld: the walkthrough if `walk` is true, then random commands."""
    path, name, walk, steps, seed = job
    from textworld import EnvInfos
    from textworld.envs.pddl import PddlEnv

    env = PddlEnv(EnvInfos(admissible_commands=True))
    env.load(str(path))
    assign_names(env._entity_infos)
    state = env.reset()
    rng = random.Random(f"{seed} {name}")
    trace = []

    def append(command, state):
        won = bool(state["won"])
        trace.append({"cmd": command, "obs": state.feedback, "won": won, "admissible": state["admissible_commands"]})
        return won

    append(None, state)
    won = False
    commands = json.loads(Path(path).read_text())["walkthrough"] if walk else []
    for command in commands:
        state, _, _ = env.step(command)
        won = append(command, state)
    for step in range(steps):
        command = choose(rng, state["admissible_commands"], step)
        state, _, _ = env.step(command)
        append(command, state)
    return {"game": name, "kind": "walkthrough, then random" if walk else "random", "won": won, "steps": trace}


@contextlib.contextmanager
def open_archive(archive):
    """Opens an archive of any supported compression for sequential reading."""
    if archive.suffix != ".zst":
        with tarfile.open(archive) as tar:
            yield tar
        return
    import zstandard

    with open(archive, "rb") as file:
        unpacked = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(file)
        with tarfile.open(fileobj=unpacked, mode="r|") as tar:
            yield tar


def archived_games(archive):
    """Yields the games of an archive: the name below the data directory, and a function that reads the current game."""
    with open_archive(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name.endswith("/game.tw-pddl"):
                yield name, lambda: tar.extractfile(member).read()


def official_games(data, work, choose):
    """Returns the official games that `choose` selects from all sorted names, as pairs of path and name below the data
    directory. Archived games are extracted into `work`."""
    tree = data if data.name == "json_2.1.1" else data / "json_2.1.1"
    if tree.is_dir():
        files = {f"json_2.1.1/{p.relative_to(tree).as_posix()}": p for p in tree.rglob("game.tw-pddl")}
        return [(files[name], name) for name in choose(sorted(files))]
    archives = sorted(path for end in ["*.tar", "*.tar.xz", "*.tar.zst"] for path in data.glob(end))
    chosen = choose(sorted(name for archive in archives for name, _ in archived_games(archive)))
    wanted = {name: work / "official" / name for name in chosen}
    for archive in archives:
        for name, read in archived_games(archive):
            if name in wanted:
                wanted[name].parent.mkdir(parents=True, exist_ok=True)
                wanted[name].write_bytes(read())
    return [(wanted[name], name) for name in chosen]


def play(jobs, out, processes):
    """Records all jobs that are not in the file yet and returns the number of won games in the file."""
    if out.exists():
        # An interrupted run may have written an incomplete line.
        complete = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        out.write_text("".join(complete))
    traces = [json.loads(line) for line in open(out)] if out.exists() else []
    won, recorded = sum(t["won"] for t in traces), {t["game"] for t in traces}
    jobs = [job for job in jobs if job[1] not in recorded]
    with multiprocessing.get_context("spawn").Pool(processes) as pool, open(out, "a") as file:
        for i, trace in enumerate(pool.imap_unordered(record, jobs), len(recorded) + 1):
            won += trace["won"]
            file.write(json.dumps(trace) + "\n")
            file.flush()
            print(f"\rTextWorld: {i}/{len(recorded) + len(jobs)} games", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return won


def conform(mage, golden, data):
    run = subprocess.run([mage, "env", "conform", "alfworld", "--golden", golden, "--data", data, "--json"], capture_output=True)
    sys.stderr.write(run.stderr.decode())
    return json.loads(run.stdout) if run.stdout else {"different": None}


def main():
    args = arguments()
    enter_venv(args.venv)
    # A regular exit also terminates the worker processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    mage = args.mage
    if mage is None:
        subprocess.run(["cargo", "build", "--release", "-p", "mage"], cwd=ROOT, check=True)
        mage = ROOT / "target" / "release" / "mage"
    temporary = None if args.work else tempfile.TemporaryDirectory()
    work = args.work or Path(temporary.name)
    games = work / f"games-{args.seed}"
    half = args.generated // 2
    for split, count in [("in-domain", args.generated - half), ("out-of-domain", half)]:
        options = ["--split", split, "--count", str(count), "--seed", str(args.seed), "--quiet"]
        if count:
            command = [mage, "env", "generate", "alfworld", "--data", args.data, "--out", games, *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    generated = [(p, p.relative_to(games).as_posix(), True, args.steps, args.seed) for p in sorted(games.rglob("game.tw-pddl"))]

    def sample(names):
        return random.Random(args.seed).sample(names, min(args.official, len(names)))

    official = [(p, n, False, args.steps, args.seed) for p, n in official_games(args.data, work, sample)]
    recordings = {source: work / f"{source}-{args.seed}-{args.steps}.jsonl" for source in ["generated", "official"]}
    won = play(generated, recordings["generated"], args.jobs)
    play(official, recordings["official"], args.jobs)

    reports = {}
    if generated:
        reports["generated"] = conform(mage, recordings["generated"], games)
    if official:
        reports["official"] = conform(mage, recordings["official"], args.data)
    print(json.dumps({"generated_games": len(generated), "won_in_textworld": won, "official_games": len(official), **reports}, indent=2))
    passed = won == len(generated) == args.generated and all(r["different"] == 0 for r in reports.values())
    print("all equal" if passed else "DIFFERENT", file=sys.stderr)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
