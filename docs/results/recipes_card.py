#!/usr/bin/env python3
"""Does a card reach what the processor reaches?

Trains recipes with every seed on both and prints each side's scores, as means and standard errors over seeds:

    cargo build --release && python3 docs/results/recipes_card.py --recipes tictactoe --seeds 10 --jobs 12

Every finished run is one line of the result file; run it again to go on where it stopped.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

LAST = 50


def run(mage, recipe, seed, device, sets, work):
    out = Path(work) / f"{recipe}-{seed}-{device}"
    command = [mage, "train", recipe, "--seed", str(seed), "--threads", "1", "--device", device, "--out", str(out), "--json", "--quiet"]
    started = time.time()
    done = subprocess.run(command + [word for s in sets for word in ("--set", s)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{recipe}, seed {seed} on {device}: {done.stderr.strip()}")
    seconds = round(time.time() - started, 1)
    return {"recipe": recipe, "seed": seed, "device": device, "seconds": seconds, **figures(out)}


def figures(out):
    """What a run came to: scores by episode after training, and in episode 3 of the last updates."""
    result = json.loads((out / "result.json").read_text())
    updates = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"updates": len(updates), "after": [e["mean"] for e in result["after"]["score"]],
            "trained": statistics.mean(u["episode_3/score"] for u in updates[-LAST:])}


def spread(numbers):
    mean = f"{statistics.mean(numbers):.3f}"
    return f"{mean} ± {statistics.stdev(numbers) / len(numbers) ** 0.5:.3f}" if len(numbers) > 1 else mean


def table(results):
    lines = [f"| recipe | on | seeds | episode 1 | episode 2 | episode 3 | episode 3, last {LAST} updates | seconds |", "|---|---|---|---|---|---|---|---|"]
    for recipe, device in sorted({(r["recipe"], r["device"]) for r in results}):
        runs = [r for r in results if (r["recipe"], r["device"]) == (recipe, device)]
        scores = [spread([r["after"][e] for r in runs]) for e in range(3)] + [spread([r["trained"] for r in runs])]
        seconds = [r["seconds"] for r in runs if r["seconds"]]
        took = " to ".join(sorted({f"{s:.0f}" for s in (min(seconds), max(seconds))}, key=int)) if seconds else "-"
        lines.append(f"| {recipe} | {device} | {len(runs)} | {' | '.join(scores)} | {took} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mage", default="target/release/mage")
    parser.add_argument("--recipes", default="kuhn,kuhn-switching,tictactoe")
    parser.add_argument("--devices", default="cpu,cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of every recipe (then use a result file of its own)")
    parser.add_argument("--results", default="docs/results/recipes_card.jsonl")
    options = parser.parse_args()
    if not os.access(options.mage, os.X_OK):
        sys.exit(f"{options.mage} cannot be run: build it with `cargo build --release`")
    path = Path(options.results)
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(r["recipe"], r["seed"], r["device"]) for r in results}
    wanted = [(r, s, d) for r in options.recipes.split(",") for s in range(options.seeds) for d in options.devices.split(",")]
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(options.jobs) as pool:
        mage = os.path.abspath(options.mage)
        waiting = [pool.submit(run, mage, *job, options.set, work) for job in wanted if job not in known]
        failed = []
        for done in as_completed(waiting):
            if done.exception():
                failed.append(str(done.exception()))
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            result = done.result()
            results.append(result)
            with path.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{result['recipe']}, seed {result['seed']} on {result['device']}: {result['seconds']:.0f} s", file=sys.stderr, flush=True)
    print(table(results))
    if failed:
        sys.exit(f"{len(failed)} of {len(waiting)} runs failed; what is done is kept")


if __name__ == "__main__":
    main()
