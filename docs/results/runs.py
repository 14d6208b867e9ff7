"""Concurrent training runs with one line per run in a result file: shared by the scripts in this folder."""
import json, os, subprocess, sys, tempfile, time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path


def train(mage, out, *words):
    """One run of `mage train`: its outcome, the metrics of its updates, and its duration in seconds."""
    started = time.time()
    done = subprocess.run([mage, "train", *words, "--out", str(out), "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    outcome = json.loads(done.stdout.strip().splitlines()[-1])["outcome"]
    metrics = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return outcome, metrics, round(time.time() - started, 1)


def resume(mage, path, key, jobs, concurrency, run, describe):
    """Runs the jobs that the result file lacks: `run(mage, job, folder)` for each job; `key(result)` is the job of a result.
    Returns all results, old and new, and the failures."""
    if not os.access(mage, os.X_OK):
        sys.exit(f"{mage} is not executable: build it with `cargo build --release`")
    path, mage, failed = Path(path), os.path.abspath(mage), []
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {key(r) for r in results}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(concurrency) as pool:
        futures = [pool.submit(run, mage, job, Path(folder) / str(i)) for i, job in enumerate(jobs) if job not in known]
        for done in as_completed(futures):
            if done.exception():
                failed.append(done.exception())
                print(failed[-1], file=sys.stderr, flush=True)
                continue
            results.append(done.result())
            with path.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(describe(results[-1]), file=sys.stderr, flush=True)
    return results, failed


def require_device(path, device):
    """Refuses a result file with runs on another kind of device: a table must not mix them."""
    kind = device.split(":")[0]
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    others = {json.loads(line).get("device", "cpu").split(":")[0] for line in lines} - {kind}
    if others:
        sys.exit(f"{path} has runs on {', '.join(sorted(others))}, and --device is {device}: name another file with --results")


def exit_if_failed(failed):
    """Exits with an error if runs failed. Call it last."""
    if failed:
        sys.exit(f"{len(failed)} runs failed; finished runs are kept")
