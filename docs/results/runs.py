"""Many training runs, a few at a time, each kept as a line of a result file: what the scripts beside this one have in common."""
import json, os, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path


def train(mage, out, *words):
    """One run of `mage train`: what it came to, its updates' metrics, and the seconds it took."""
    started = time.time()
    done = subprocess.run([mage, "train", *words, "--out", str(out), "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    outcome = json.loads(done.stdout.strip().splitlines()[-1])["outcome"]
    metrics = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return outcome, metrics, round(time.time() - started, 1)


def go_on(mage, path, key, wanted, side_by_side, run, tell):
    """Makes the runs that the result file has not yet: `run(mage, job, folder)` of each job in `wanted`, which `key(result)` names again.
    All results, old and new, and what failed."""
    if not os.access(mage, os.X_OK):
        sys.exit(f"{mage} cannot be run: build it with `cargo build --release`")
    path, mage, failed = Path(path), os.path.abspath(mage), []
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {key(r) for r in results}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(side_by_side) as pool:
        waiting = [pool.submit(run, mage, job, Path(folder) / str(i)) for i, job in enumerate(wanted) if job not in known]
        for done in as_completed(waiting):
            if done.exception():
                failed.append(done.exception())
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            results.append(done.result())
            with path.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(tell(results[-1]), file=sys.stderr, flush=True)
    return results, failed


def of_one_device(path, device):
    """Refuses a result file whose runs were made on something else: a table of both would say nothing."""
    kind = device.split(":")[0]
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    others = {json.loads(line).get("device", "cpu").split(":")[0] for line in lines} - {kind}
    if others:
        sys.exit(f"{path} has runs made on {', '.join(sorted(others))}, and --device is {device}: give --results another file")


def leave(failed):
    """Ends with an error where runs failed, after everything else was told."""
    if failed:
        sys.exit(f"{len(failed)} runs failed; what is done is kept")
