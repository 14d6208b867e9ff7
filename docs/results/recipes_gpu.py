#!/usr/bin/env python3
"""Default recipes on GPU and CPU.

Trains each recipe with each seed on both devices and prints means and standard errors over seeds:

    cargo build --release && python3 docs/results/recipes_gpu.py --recipes tictactoe --seeds 10 --jobs 12

Each finished run is one line of the result file; a second call resumes.
"""
import argparse, statistics

import runs

LAST = 50


def run(mage, recipe, seed, device, sets, out):
    """Scores by episode after training, and in episode 3 of the last updates."""
    words = [word for s in sets for word in ("--set", s)]
    outcome, metrics, seconds = runs.train(mage, out, recipe, "--seed", str(seed), "--threads", "1", "--device", device, *words)
    return {"recipe": recipe, "seed": seed, "device": device, "seconds": seconds, "updates": len(metrics),
            "after": [e["mean"] for e in outcome["after"]["score"]],
            "trained": statistics.mean(u["episode_3/score"] for u in metrics[-LAST:])}


def mean_and_error(values):
    mean = f"{statistics.mean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else mean


def table(results):
    lines = [f"| recipe | device | seeds | episode 1 | episode 2 | episode 3 | episode 3, last {LAST} updates | seconds |", "|---|---|---|---|---|---|---|---|"]
    for recipe, device in sorted({(r["recipe"], r["device"]) for r in results}):
        these = [r for r in results if (r["recipe"], r["device"]) == (recipe, device)]
        scores = [mean_and_error([r["after"][e] for r in these]) for e in range(3)] + [mean_and_error([r["trained"] for r in these])]
        seconds = [r["seconds"] for r in these if r["seconds"]]
        took = " to ".join(sorted({f"{s:.0f}" for s in (min(seconds), max(seconds))}, key=int)) if seconds else "-"
        lines.append(f"| {recipe} | {device} | {len(these)} | {' | '.join(scores)} | {took} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mage", default="target/release/mage")
    parser.add_argument("--recipes", default="kuhn,kuhn-switching,tictactoe")
    parser.add_argument("--devices", default="cpu,cuda")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a recipe key (use a separate result file)")
    parser.add_argument("--results", default="docs/results/recipes_gpu.jsonl")
    options = parser.parse_args()
    jobs = [(r, s, d) for r in options.recipes.split(",") for s in range(options.seeds) for d in options.devices.split(",")]
    results, failed = runs.resume(
        options.mage, options.results, lambda r: (r["recipe"], r["seed"], r["device"]), jobs, options.jobs,
        lambda mage, job, out: run(mage, *job, options.set, out),
        lambda r: f"{r['recipe']}, seed {r['seed']} on {r['device']}: {r['seconds']:.0f} s")
    print(table(results))
    runs.exit_if_failed(failed)


if __name__ == "__main__":
    main()
