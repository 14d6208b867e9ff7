#!/usr/bin/env python3
"""Kuhn poker: comparison of methods and ablations.

Trains every arm with every seed at equal episodes per update and prints last-episode scores with intervals over seeds and paired
tests. Needs Python and a release build:

    cargo build --release && python3 docs/results/kuhn_methods.py --jobs 2
    python3 docs/results/kuhn_methods.py --arms mage --seeds 5 --jobs 5 --device cuda --results docs/results/kuhn_methods_gpu.jsonl

Each finished run is one line of the result file; a second call resumes.
"""
import argparse, itertools, random, statistics

import runs

METHODS = {
    "mage": ["mage"],
    "lamer": ["lamer"],
    "own-episode": ["own-episode"],
    "gigpo": ["gigpo"],
    "grpo": ["grpo"],
}
# Each ablation is `mage` with one choice of the released code, or a common choice. The first three replace the return-to-go
# estimator: compare the second with the first; the third has the same transition-mean baseline.
ABLATIONS = {
    "transition-mean two-level baseline": ["mage", "--set", "method.estimator.kind=gigpo", "--set", "method.estimator.baseline=transition"],
    "uncredited reflections": [
        "mage", "--set", "method.estimator.kind=gigpo", "--set", "method.estimator.baseline=transition",
        "--set", "method.credit.reflection=faithful",
    ],
    "std normalisation": ["mage", "--set", "method.estimator.kind=grpo", "--set", "method.estimator.signal=return"],
    "low entropy (0.01)": ["mage", "--set", "loss.entropy=0.01", "--set", "loss.entropy_end=0.001"],
}
LONGER = {"mage, ten episodes at test time": ["mage", "--set", "eval.episodes=10"]}


def run(mage, arm, args, seed, device, out):
    outcome, metrics, seconds = runs.train(
        mage, out, "kuhn", args[0], "--seed", str(seed), "--threads", "1", "--device", device,
        "--set", "eval.every=0", "--set", "trajectories.every=0", *args[1:])
    ceilings = outcome["ceilings"]["mean"]
    return {
        "arm": arm, "seed": seed, "device": device, "seconds": seconds,
        "score": [e["mean"] for e in outcome["after"]["score"]], "se": [e["se"] for e in outcome["after"]["score"]],
        "without_memory": [e["mean"] for e in outcome["without_memory"]["score"]],
        "entropy": metrics[-1]["entropy"], "factual": metrics[-1].get("factual"),
        "memoryless": ceilings["memoryless"], "adaptive": ceilings["sum"]["by_episode"],
    }


def interval(values, draws=10_000):
    """Bootstrap over seeds."""
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def sign_flip(differences):
    """Exact two-sided permutation test of paired differences: the share of sign patterns at least as extreme."""
    seen = abs(sum(differences))
    patterns = itertools.product((1, -1), repeat=len(differences))
    extreme = sum(abs(sum(s * d for s, d in zip(signs, differences))) >= seen - 1e-12 for signs in patterns)
    return extreme / 2 ** len(differences)


def table(results):
    by_arm = {}
    for r in results:
        by_arm.setdefault(r["arm"], {})[r["seed"]] = r
    lines = ["| arm | seeds | episode 1 | episode 2 | last episode | 95 % interval over seeds | lowest | last, without memory |",
             "|---|---|---|---|---|---|---|---|"]
    for arm, of_arm in by_arm.items():
        mean = lambda n: statistics.fmean(r["score"][n] for r in of_arm.values())
        last = [r["score"][-1] for r in of_arm.values()]
        low, high = interval(last)
        without_memory = statistics.fmean(r["without_memory"][-1] for r in of_arm.values())
        lines.append(f"| {arm} | {len(of_arm)} | {mean(0):.3f} | {mean(1):.3f} | **{statistics.fmean(last):.3f}** "
                     f"| {low:.3f} to {high:.3f} | {min(last):.3f} | {without_memory:.3f} |")
    base = by_arm.get("mage")
    if base:
        lines += ["", "| `mage` minus | last episode, mean over paired seeds | 95 % interval | p (sign-flip, exact) |", "|---|---|---|---|"]
        for arm, of_arm in by_arm.items():
            pairs = [base[s]["score"][-1] - r["score"][-1] for s, r in of_arm.items() if s in base and len(r["score"]) == 3]
            if arm != "mage" and len(pairs) > 2:
                low, high = interval(pairs)
                lines.append(f"| {arm} | {statistics.fmean(pairs):+.3f} ({len(pairs)} pairs) | {low:+.3f} to {high:+.3f} | {sign_flip(pairs):.3f} |")
    for arm, of_arm in by_arm.items():
        curves = [r["score"] for r in of_arm.values()]
        if len(curves[0]) > 3:
            one = next(iter(of_arm.values()))
            lines += ["", f"{arm}, {len(of_arm)} seeds:", "", "| episode | " + " | ".join(str(n + 1) for n in range(len(curves[0]))) + " |",
                      "|---" * (len(curves[0]) + 1) + "|",
                      "| policy | " + " | ".join(f"{statistics.fmean(c[n] for c in curves):.3f}" for n in range(len(curves[0]))) + " |",
                      "| Bayes-adaptive optimum | " + " | ".join(f"{v:.3f}" for v in one["adaptive"]) + " |"]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mage", default="target/release/mage")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--arms", default="methods,ablations,longer", help="which arms: mage alone, methods, ablations, longer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", default="docs/results/kuhn_methods.jsonl")
    options = parser.parse_args()
    arms = {}
    for group in options.arms.split(","):
        arms |= {"mage": {"mage": METHODS["mage"]}, "methods": METHODS, "ablations": ABLATIONS, "longer": LONGER}[group]
    jobs = [(arm, seed) for seed in range(options.seeds) for arm in arms]
    runs.require_device(options.results, options.device)
    results, failed = runs.resume(
        options.mage, options.results, lambda r: (r["arm"], r["seed"]), jobs, options.jobs,
        lambda mage, job, out: run(mage, job[0], arms[job[0]], job[1], options.device, out),
        lambda r: f"{r['arm']}, seed {r['seed']}: {r['score'][-1]:.3f} in {r['seconds']:.0f} s")
    order = {arm: i for i, arm in enumerate(METHODS | ABLATIONS | LONGER)}
    print(table(sorted(results, key=lambda r: (order.get(r["arm"], len(order)), r["seed"]))))
    runs.exit_if_failed(failed)


if __name__ == "__main__":
    main()
