#!/usr/bin/env python3
"""faults.py FOURFOLD FOURFOLD_FAULTS LAUNCHER...: faults at a chosen rank, step and phase, in whole runs.

Each ends the job within its limit, non-zero, the right rank in the first error line (the launcher's for a kill and for
_exit(0)), or does no harm; in every case the same command without the fault goes on to the weights of an unbroken run.
FOURFOLD_CASES=a,b: these alone.
"""
import os
import re
import shutil
import subprocess
import sys
import time

from small_run import FULL, Runs

ABORT = 10  # seconds to the end of a job one of whose ranks fails
WATCH = 3   # the watchdog's limit here
WATCHED = 14  # ... and what reading the rings and ending may take on a busy machine
LIMITS = [f"watchdog.{phase}={WATCH}" for phase in ("step", "evaluation", "checkpoint")]

FREE = ["optimizer.schedule.kind=constant", "optimizer.schedule.warmup=0"]  # of the number of steps

# name: (pain, fault, overrides, seconds, exit codes, the first error line)
LINE = r"rank 1 on \S+, step 5, "
ENDS = {
    "throw": ("P41", "throw rank=1 step=5 phase=backward", [], ABORT, [1], LINE + "backward: a fault was ordered"),
    "bad_alloc": ("P41", "bad_alloc rank=1 step=5 phase=update", [], ABORT, [1], LINE + "update: out of memory"),
    "segv": ("P41", "segv rank=1 step=5 phase=forward", [], ABORT, [1], LINE + r"forward: .*SIGSEGV"),
    "exit0": ("P41", "exit0 rank=1 step=5 phase=forward", [], ABORT, [1], LINE + r"forward: exit\(\) was called"),
    "quick_exit0": ("P41", "quick_exit0 rank=1 step=5 phase=forward", [], ABORT, None, r"rank 1|exit"),
    "kill": ("P41", "kill rank=1 step=5 phase=backward", [], ABORT, None, r"rank 1"),
    "sleep": ("P42", "sleep rank=1 step=5 phase=backward seconds=1000", LIMITS, WATCHED, [1],
              LINE + "backward: holds up the run"),
    "sleep_in_evaluation": ("P42", "sleep rank=2 step=5 phase=evaluation seconds=1000", LIMITS, WATCHED, [1],
                            r"rank 2 on \S+, step 5, evaluation: holds up the run"),
    "sleep_in_save": ("P13", "sleep rank=3 step=4 phase=checkpoint seconds=1000", LIMITS, WATCHED, [1],
                      r"rank 3 on \S+, step 4, checkpoint: holds up the run"),
    "skip": ("P42", "skip rank=1 step=5 phase=gradient_sum", LIMITS, WATCHED, [1], r"rank 1 on \S+, step 5, "),
    "shorten": ("P42", "shorten rank=1 step=5 phase=gradient_sum", LIMITS, WATCHED, [1], r"rank 1\b"),
    "skip_checked": ("P42", "skip rank=1 step=5 phase=gradient_sum", LIMITS + ["comm.check_calls=true"], WATCHED, [1],
                     r"rank 1 on \S+, step 5, "),
    "shorten_checked": ("P42", "shorten rank=1 step=5 phase=gradient_sum", ["comm.check_calls=true"], ABORT, [1],
                        LINE + r"gradient sum: comm.check_calls: in group 'data.*rank\(s\) 1 came to all_reduce of"),
    "swap_checked": ("P42", "swap rank=1 step=5 phase=gradient_sum",
                     ["comm.check_calls=true", "comm.bucket_bytes=100000"], ABORT, [1], r"rank 1\b"),
    "enospc": ("P04", "enospc step=4", [], ABORT, [4], r"rank \d on \S+, step 4, checkpoint: .*step 4 not written"),
}
# name: (pain, fault, overrides, what standard output or error says afterwards)
HARMLESS = {
    "short_write": ("P04", "short_write step=4", [], ""),
    "finite_sleep": ("P13", "sleep rank=1 step=5 phase=backward seconds=1.5", LIMITS, ""),
    "slow_save": ("P13", "slow_write step=4 seconds=0.3", ["watchdog.step=1", "watchdog.checkpoint=60"], ""),
    "checked": ("P42", "", ["comm.check_calls=true"], ""),
}
# A kill at each stage of a save of step 6: what is committed then.
STAGES = {
    "first_byte": ("P01", "kill_write step=6", [2, 4]),
    "half": ("P01", "kill_write step=6 call=3", [2, 4]),
    "before_commit": ("P01", "kill_rename step=6", [2, 4]),
    "after_commit": ("P01", "kill rank=2 step=7 phase=data", [2, 4, 6]),
}
# Stops: rank, step and phase of the signal; what is saved last.
STOPS = {
    "usr1_in_accumulation": ("P52", "usr1 rank=2 step=5 phase=forward call=1", 5),
    "usr1_in_evaluation": ("P52", "usr1 rank=2 step=5 phase=evaluation", 5),
    "term_in_save": ("P52", "term rank=0 step=4 phase=checkpoint", 4),
}


def error_lines(err):
    return [line for line in err.splitlines()
            if re.match(r"rank \d+|fourfold: error|mpi(run|exec)|.*(exited|noticed)", line)]


def main():
    fourfold, faulty, launcher = sys.argv[1], sys.argv[2], sys.argv[3:]
    runs = Runs(launcher)
    chosen = [name for name in os.environ.get("FOURFOLD_CASES", "").split(",") if name]
    wanted = lambda name: not chosen or name in chosen
    try:
        code, out, err, seconds = runs.run(fourfold, "unbroken")
        if code != 0:
            runs.fail(f"the unbroken run: {code}\n{out}\n{err}")
            return 1
        final = runs.path("unbroken", "checkpoints", "step_00000012.h5")

        def is_final(name):  # bit for bit; the deck that is kept beside the tensors differs
            mine = runs.path(name, "checkpoints", "step_00000012.h5")
            return subprocess.run([fourfold, "inspect", final, "--compare", mine], stdout=subprocess.DEVNULL).returncode == 0

        print(f"the unbroken run: {seconds:.1f} s", flush=True)

        def goes_on(name, overrides=()):
            code, out, err, _ = runs.run(fourfold, name, *overrides)
            if code != 0:
                runs.fail(f"{name}: the restart: {code}\n{out[-2000:]}\n{err[-2000:]}")
            elif not is_final(name):
                runs.fail(f"{name}: the restart ends with other weights")
            shutil.rmtree(runs.path(name))
            return out + err

        for name, (pain, fault, overrides, limit, codes, first) in ENDS.items():
            if not wanted(name):
                continue
            code, out, err, seconds = runs.run(faulty, name, *overrides, fault=fault, limit=limit + 20)
            lines = error_lines(err)
            print(f"{pain} {name}: exit code {code} after {seconds:.1f} s: {lines[0] if lines else ''}", flush=True)
            if code == 0 or (codes and code not in codes):
                runs.fail(f"{name}: exit code {code}\n{out[-2000:]}\n{err}")
            if seconds > limit:
                runs.fail(f"{name}: took {seconds:.1f} s, allowed {limit}")
            if not lines or not re.search(first, lines[0] if first.startswith("rank") else err):
                runs.fail(f"{name}: the first error line does not match {first}\n{err}")
            if FULL or name in ("kill", "skip", "enospc"):
                goes_on(name)

        for name, (pain, fault, overrides, _) in HARMLESS.items():
            if not wanted(name):
                continue
            code, out, err, seconds = runs.run(faulty, name, *overrides, fault=fault)
            print(f"{pain} {name}: exit code {code} after {seconds:.1f} s", flush=True)
            if code != 0:
                runs.fail(f"{name}: exit code {code}\n{out[-2000:]}\n{err}")
            elif not is_final(name):
                runs.fail(f"{name}: other weights")

        # A flipped bit is found at the restart, with the tensor it is in; the step before is used.
        if wanted("flip"):
            code, out, err, _ = runs.run(faulty, "flip", "run.steps=4", *FREE,
                                         fault="flip step=4")
            if code != 0:
                runs.fail(f"flip: exit code {code}\n{err}")
            code, out, err, _ = runs.run(fourfold, "flip", "run.steps=6", *FREE)
            found = re.search(r"step_00000004\.h5: (.*)", err)
            print(f"P14 flip: {found.group(1) if found else err}", flush=True)
            if code != 0 or not found or "the checksum of elements" not in err or "restart from step 2" not in out:
                runs.fail(f"flip: {code}\n{out}\n{err}")

        for name, (pain, fault, committed) in STAGES.items():
            if not wanted(name):
                continue
            code, out, err, _ = runs.run(faulty, name, fault=fault, limit=30)
            have = runs.committed(name)
            print(f"{pain} killed at {name}: committed {have}", flush=True)
            if code == 0 or have != committed:
                runs.fail(f"{name}: exit code {code}, committed {have}, wanted {committed}\n{err}")
            said = goes_on(name)
            if f"restart from step {committed[-1]} " not in said:
                runs.fail(f"{name}: no restart from step {committed[-1]}\n{said}")
            if name != "after_commit" and "not committed: its save was interrupted" not in said:
                runs.fail(f"{name}: the interrupted save is not named\n{said}")

        for name, (pain, fault, step) in STOPS.items():
            if not wanted(name):
                continue
            code, out, err, _ = runs.run(faulty, name, fault=fault, limit=30)
            have = runs.committed(name)
            print(f"{pain} {name}: exit code {code}, committed {have}", flush=True)
            if code != 75 or have[-1:] != [step]:
                runs.fail(f"{name}: exit code {code}, committed {have}\n{out}\n{err}")
            goes_on(name)
        if wanted("order"):
            order(runs, faulty)
        if wanted("inf"):
            non_finite(runs, faulty)
        if wanted("time_limit"):
            time_limit(runs, faulty)
        if wanted("cores"):
            cores(runs, fourfold)
    finally:
        runs.close()
    print(f"{runs.failures} failures")
    return 1 if runs.failures else 0


def order(runs, faulty):
    """P02: data, fsync, rename, record, fsync, rename, fsync of the folder; as many fsyncs on 4 ranks as on one."""
    syncs = {}
    for ranks in (1, 4):
        folder = f"order{ranks}"
        code, out, err, _ = runs.run(faulty, folder, "run.steps=2", *FREE,
                                     fault="log", ranks=ranks)
        calls = re.findall(r"log rank \d+: (\w+) \S*/(checkpoints\S*)", err)
        short = [f"{call} {path.split('step_00000002')[-1]}" for call, path in calls]
        once = [call for i, call in enumerate(short) if i == 0 or call != short[i - 1]]
        syncs[ranks] = sum(call.startswith("fsync") for call in short)
        print(f"P02 order on {ranks} ranks: {once}, {syncs[ranks]} fsyncs", flush=True)
        wanted = ["write .h5.tmp", "fsync .h5.tmp", "rename .h5", "write .commit.tmp", "fsync .commit.tmp",
                  "rename .commit", "fsync checkpoints"]
        if code != 0 or once[-len(wanted):] != wanted:
            runs.fail(f"order on {ranks} ranks: exit code {code}: {once}\n{err[-1000:] if code else ''}")
    if syncs[1] != syncs[4]:
        runs.fail(f"order: {syncs} fsyncs by ranks")


def non_finite(runs, faulty):
    """P61, P62: an infinite gradient on one rank: all ranks leave the step out, or stop, with the tensor's name."""
    fault = "inf rank=1 step=5 phase=gradient_sum"
    code, out, err, _ = runs.run(faulty, "inf_stop", fault=fault)
    first = error_lines(err)[:1]
    print(f"P62 inf under stop: exit code {code}: {first}", flush=True)
    if code != 1 or not first or not re.search(r"step 5: loss .*gradient is not finite: \w", first[0]):
        runs.fail(f"inf_stop: exit code {code}\n{err}")
    if runs.committed("inf_stop") != [2, 4]:
        runs.fail(f"inf_stop: committed {runs.committed('inf_stop')}")
    skip = ["numerics.non_finite.policy=skip", "numerics.non_finite.most=2", "debug.replica_check=1"]
    code, out, err, _ = runs.run(faulty, "inf_skip", *skip, fault=fault)
    print(f"P61 inf under skip: exit code {code}", flush=True)
    if code != 0 or "step 5 is left out" not in err or "step 6 is left out" in err:
        runs.fail(f"inf_skip: exit code {code}\n{out}\n{err}")
    code, out, err, _ = runs.run(faulty, "inf_for_ever", *skip, fault=fault + " last=12")
    first = error_lines(err)[:1]
    print(f"P61 permanent inf under skip: exit code {code}: {first}", flush=True)
    if code != 1 or not first or not re.search(r"step 7, after 2 left out in a row.*not finite: \w", first[0]):
        runs.fail(f"inf_for_ever: exit code {code}\n{err}")


def time_limit(runs, faulty):
    """P53: the last save starts early enough, exit 75 before the limit; Slurm's end time counts like the deck's."""
    steps = ["run.steps=100000", "checkpoint.every=25", "eval.every=0", *FREE]
    code, out, err, seconds = runs.run(faulty, "limit", *steps, "run.time_limit=8", limit=30)
    print(f"P53 run.time_limit 8 s: exit code {code} after {seconds:.1f} s", flush=True)
    if code != 75 or seconds > 11 or "the time limit (run.time_limit)" not in out or not runs.committed("limit"):
        runs.fail(f"limit: exit code {code} after {seconds:.1f} s\n{out}\n{err}")
    os.environ["SLURM_JOB_END_TIME"] = str(int(time.time()) + 8)
    code, out, err, seconds = runs.run(faulty, "slurm", *steps, limit=30)
    del os.environ["SLURM_JOB_END_TIME"]
    print(f"P53 Slurm's end in 8 s: exit code {code} after {seconds:.1f} s", flush=True)
    if code != 75 or seconds > 11 or "SLURM_JOB_END_TIME" not in out or not runs.committed("slurm"):
        runs.fail(f"slurm: exit code {code} after {seconds:.1f} s\n{out}\n{err}")


def cores(runs, fourfold):
    """P75: two ranks pinned to one core of several are refused with what to type."""
    if os.cpu_count() < 2:
        print("NOT TESTED: P75 needs two cores")
        return
    if os.access("/usr/bin/taskset", os.X_OK):
        runs.launcher = ["taskset", "-c", "0", *runs.launcher]
    code, out, err, _ = runs.run(fourfold, "cores", ranks=2)
    print(f"P75 two ranks on one core: exit code {code}: {error_lines(err)[:1]}", flush=True)
    if code != 3 or "rank(s) 0, 1 on " not in err or "FOURFOLD_SHARE_CORES=1" not in err:
        runs.fail(f"cores: exit code {code}\n{err}")
    os.environ["FOURFOLD_SHARE_CORES"] = "1"
    code, out, err, _ = runs.run(fourfold, "cores", "run.steps=1", *FREE, ranks=2)
    if code != 0:
        runs.fail(f"cores meant: exit code {code}\n{err}")
    runs.launcher = [word for word in runs.launcher if word not in ("taskset", "-c", "0")]
    del os.environ["FOURFOLD_SHARE_CORES"]


if __name__ == "__main__":
    sys.exit(main())
