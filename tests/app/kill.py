#!/usr/bin/env python3
"""kill.py FOURFOLD LAUNCHER...: SIGKILL at random moments of a run on 4 ranks that saves every 2 steps.

Moments are uniform over a whole run, start included: one of the unbroken run, given as lines of metrics.jsonl and
seconds after the last of them, so that a machine that turns slow moves none into the start. One rank is killed, or all
of them at once. The same command goes on: never a crash, never a lost committed step, and the weights, moments and
state of the end are those of the unbroken run, byte for byte. 10 moments for each way of saving, 200 with FOURFOLD_FULL=1; FOURFOLD_SEED repeats a draw.
"""
import bisect
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

from small_run import FULL, SEED, Runs, rank_processes

# Overrides of each way of saving.
WAYS = {
    "synchronous": [],
    "asynchronous": ["checkpoint.mode=async"],
}


def lines_of(runs, folder):
    try:
        return runs.bytes_of(folder, "metrics.jsonl").count(b"\n")
    except FileNotFoundError:
        return 0


def time_lines(runs, fourfold, way):
    """The unbroken run: the seconds at which it had 0, 1, ... lines of metrics, and its end."""
    begin = time.monotonic()
    job = runs.start(fourfold, "run", *WAYS[way])
    times = [0.0]
    while job.poll() is None and time.monotonic() - begin < 120:
        now = time.monotonic() - begin
        times += [now] * (lines_of(runs, "run") + 1 - len(times))
        time.sleep(0.002)
    job.kill()
    out, err = job.communicate()
    if job.returncode != 0:
        runs.fail(f"{way}: the unbroken run: {job.returncode}\n{out}\n{err}")
        return None
    return times + [time.monotonic() - begin]


def kill_once(runs, fourfold, way, draw, times):
    folder, moment, victim = "run", draw.uniform(0, times[-1]), draw.randrange(runs.ranks + 1)
    lines = bisect.bisect_right(times, moment) - 1
    after = moment - times[lines]
    job = runs.start(fourfold, folder, *WAYS[way])
    while job.poll() is None and lines_of(runs, folder) < lines:
        time.sleep(0.002)
    time.sleep(after)
    ranks = rank_processes(job)
    everyone = victim == runs.ranks or len(ranks) < runs.ranks
    for process in ranks if everyone else [ranks[victim]]:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    if not ranks and job.poll() is None:
        job.kill()  # before there were ranks
    what = f"{way}: rank {'all' if everyone else victim} killed {after:.3f} s after line {lines} of metrics"
    try:
        job.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        # Seen of Open MPI 4.1's mpiexec: it stays for ever in PMIx_server_finalize, which waits for its own lock.
        if living := rank_processes(job):
            runs.fail(f"{what}: {len(living)} ranks not gone within 10 s")
        print(f"{what}: the launcher outlived its ranks and was killed", flush=True)
        for process in living:
            os.kill(process, signal.SIGKILL)
        job.kill()
        job.communicate()
    committed = runs.committed(folder)
    code, out, err, _ = runs.run(fourfold, folder, *WAYS[way])
    found = re.search(r"restart from step (\d+) ", out)
    start = int(found.group(1)) if found else 0
    if code != 0:
        runs.fail(f"{what}: the restart: exit code {code}\n{out[-2000:]}\n{err[-2000:]}")
    elif start != (committed[-1] if committed else 0):
        runs.fail(f"{what}: restart from step {start}, committed were {committed}")
    return start


def main():
    fourfold, launcher = sys.argv[1], sys.argv[2:]
    runs = Runs(launcher)
    print(f"FOURFOLD_SEED={SEED}")
    try:
        for way in WAYS:
            times = time_lines(runs, fourfold, way)
            if times is None:
                continue
            final = runs.bytes_of("run", "checkpoints", "step_00000012.h5")
            shutil.rmtree(runs.path("run"))
            draw = random.Random(SEED)
            starts = []
            for count in range(1, (200 if FULL else 10) + 1):
                starts.append(kill_once(runs, fourfold, way, draw, times))
                if runs.committed("run")[-1:] != [12]:
                    runs.fail(f"{way}: after a restart from step {starts[-1]}: no step 12")
                elif runs.bytes_of("run", "checkpoints", "step_00000012.h5") != final:
                    runs.fail(f"{way}: other weights after a restart from step {starts[-1]}")
                shutil.rmtree(runs.path("run"), ignore_errors=True)
                if count % 20 == 0:
                    print(f"{way}: {count} kills, {runs.failures} failures", flush=True)
            print(f"{way}: {len(starts)} kills, restarts from steps {sorted(starts)}", flush=True)
            if not 0 < sum(1 for start in starts if start > 0):
                runs.fail(f"{way}: no restart had a committed step to go on from")
    finally:
        runs.close()
    print(f"{runs.failures} failures")
    return 1 if runs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
