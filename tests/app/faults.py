#!/usr/bin/env python3
"""faults.py FOURFOLD FOURFOLD_FAULTS LAUNCHER...: faults at a chosen rank, step and phase, in whole runs.

Each ends the job within its limit, non-zero, the right rank in the first error line (the launcher's for a kill and for
_exit(0)), or does no harm; in every case the same command without the fault goes on to the weights of an unbroken run
(tried after three of the ends; after all of them with FOURFOLD_FULL=1). FOURFOLD_CASES=a,b: these alone. Most of a
case is waiting: three run at once.
"""
import concurrent.futures
import fcntl
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

from small_run import FULL, Runs

AT_ONCE = 3
ABORT = 10  # seconds to the end of a job one of whose ranks fails
WATCH = 3   # the watchdog's limit here
WATCHED = 14  # ... and what reading the rings and ending may take on a busy machine
LIMITS = [f"watchdog.{phase}={WATCH}" for phase in ("step", "evaluation", "checkpoint")]
ASYNC = ["checkpoint.mode=async"]

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
    "flip_state": ("P14", "flip_state step=4", [], ABORT, [4],
                   r"fourfold: error: checkpoint of step 4 not written .*/state/deck reads back other than it was"),
    "enospc_async": ("P04", "enospc rank=2 step=4 call=1", ASYNC, ABORT, [4],
                     r"fourfold: error: checkpoint of step 4 not written to \S+ \(rank 2\): cannot write .*No space"),
    "enospc_in_close": ("P04", "enospc rank=2 step=4", ASYNC, ABORT, [4],
                        r"rank 2 on \S+, step 4, checkpoint: checkpoint of step 4 not written to \S+: closing "),
}
# name: (pain, fault, overrides)
HARMLESS = {
    "short_write": ("P04", "short_write step=12", []),
    "short_write_async": ("P04", "short_write rank=1 step=12 call=3", ASYNC),
    "finite_sleep": ("P13", "sleep rank=1 step=5 phase=backward seconds=1.5", LIMITS),
    "slow_save": ("P13", f"slow_write step=4 seconds={0.3 if FULL else 0.06}",
                  ["watchdog.step=1", "watchdog.checkpoint=60"]),
    "slow_save_async": ("P13", f"slow_write rank=3 step=4 seconds={0.3 if FULL else 0.1}", ASYNC + ["watchdog.checkpoint=60"]),
    "checked": ("P42", "", ["comm.check_calls=true"]),
}
# A kill at each stage of a save of step 6: what is committed then.
STAGES = {
    "first_byte": ("P01", "kill_write step=6", [], [2, 4]),
    "half": ("P01", "kill_write step=6 call=3", [], [2, 4]),
    "before_rename": ("P01", "kill_rename step=6", [], [2, 4]),
    "before_commit": ("P01", "kill_commit step=6", [], [2, 4]),
    "after_commit": ("P01", "kill rank=2 step=7 phase=data", [], [2, 4, 6]),
    "first_byte_async": ("P01", "kill_write step=6", ASYNC, [2, 4]),
    "half_async": ("P01", "kill_write rank=3 step=6 call=9", ASYNC, [2, 4]),
    "before_rename_async": ("P01", "kill_rename step=6", ASYNC, [2, 4]),
    "before_commit_async": ("P01", "kill_commit step=6", ASYNC, [2, 4]),
}
# A bit that flips on its way to the disk: of an asynchronous save a rank's first write is HDF5's own.
FLIPS = {"flip": ("flip step=4", []), "flip_async": ("flip rank=1 step=4 call=1", ASYNC)}
# Stops: rank, step and phase of the signal; what is saved last.
STOPS = {
    "usr1_in_accumulation": ("P52", "usr1 rank=2 step=5 phase=forward call=1", [], 5),
    "usr1_in_evaluation": ("P52", "usr1 rank=2 step=5 phase=evaluation", [], 5),
    "term_in_save": ("P52", "term rank=0 step=4 phase=checkpoint", [], 4),
    "term_in_save_async": ("P52", "term rank=0 step=4 phase=checkpoint", ASYNC, 4),
}
# The other commands that wait for all ranks: words, fault, the first error line.
OTHERS = {
    "sleep_in_eval": ("eval", [], "sleep rank=1 step=12 phase=evaluation seconds=1000", "evaluation"),
    "sleep_in_generate": ("generate", ["--ids", "3 1 4", "--tokens", "5"],
                          "sleep rank=1 step=12 phase=generation seconds=1000 call=2", "generation"),
}


def error_lines(err):
    return [line for line in err.splitlines()
            if re.match(r"rank \d+|fourfold: error|mpi(run|exec)|.*(exited|noticed)", line)]


class Faults:
    """The cases; each uses folders of its own name."""

    def __init__(self, fourfold, faulty, runs):
        self.fourfold, self.faulty, self.runs = fourfold, faulty, runs
        self.final = runs.path("unbroken", "checkpoints", "step_00000012.h5")

    def cases(self):
        """name: call; the long ones first."""
        all_cases = {"limit": self.time_limit, "slurm_limit": self.slurm_limit}
        for group, case in ((OTHERS, self.other), (ENDS, self.end), (HARMLESS, self.harmless), (FLIPS, self.flip),
                            (STAGES, self.stage), (STOPS, self.stop)):
            for name in group:
                all_cases[name] = lambda name=name, case=case: case(name)
        all_cases.update(order=self.order, inf_stop=self.inf_stop, inf_skip=self.inf_skip,
                         inf_for_ever=self.inf_for_ever, inf_restarts=self.inf_restarts, locked=self.locked, replace=self.replace,
                         allow_missing=self.allow_missing,
                         cores=self.cores)
        return all_cases

    def say(self, *words):
        print(*words, flush=True)

    def is_final(self, name):
        """Bit for bit; the deck that is kept beside the tensors differs."""
        mine = self.runs.path(name, "checkpoints", "step_00000012.h5")
        return subprocess.run([self.fourfold, "inspect", self.final, "--compare", mine],
                              stdout=subprocess.DEVNULL).returncode == 0

    def goes_on(self, name):
        code, out, err, _ = self.runs.run(self.fourfold, name)
        if code != 0:
            self.runs.fail(f"{name}: the restart: {code}\n{out[-2000:]}\n{err[-2000:]}")
        elif not self.is_final(name):
            self.runs.fail(f"{name}: the restart ends with other weights")
        shutil.rmtree(self.runs.path(name))
        return out + err

    def expect_end(self, name, ended, limit, codes, first):
        code, out, err, seconds = ended
        lines = error_lines(err)
        if code == 0 or (codes and code not in codes):
            self.runs.fail(f"{name}: exit code {code}\n{out[-2000:]}\n{err}")
        if seconds > limit:
            self.runs.fail(f"{name}: took {seconds:.1f} s, allowed {limit}")
        if not lines or not re.search(first, lines[0] if first.startswith("rank") else err):
            self.runs.fail(f"{name}: the first error line does not match {first}\n{err}")
        return f"{name}: exit code {code} after {seconds:.1f} s: {lines[0] if lines else ''}"

    def end(self, name):
        pain, fault, overrides, limit, codes, first = ENDS[name]
        ended = self.runs.run(self.faulty, name, *overrides, fault=fault, limit=limit + 20)
        self.say(pain, self.expect_end(name, ended, limit, codes, first))
        if FULL or name in ("kill", "skip", "enospc"):
            self.goes_on(name)

    def other(self, name):
        """P42: eval and generate are watched too, and leave nothing where they end well."""
        verb, words, fault, phase = OTHERS[name]
        limits = ["watchdog.start=60", f"watchdog.evaluation={WATCH}"]
        rings = lambda: glob.glob(self.runs.path(name, "ranks*", "*"))
        os.makedirs(self.runs.path(name))
        os.symlink(self.runs.path("unbroken", "checkpoints"), self.runs.path(name, "checkpoints"))
        code, out, err, _ = self.runs.run(self.fourfold, name, *limits, *words, verb=verb)
        if code != 0 or glob.glob(self.runs.path(name, "ranks*")):
            self.runs.fail(f"{name}: without a fault: exit code {code}, left {rings()}\n{out}\n{err}")
        ended = self.runs.run(self.faulty, name, *limits, *words, fault=fault, verb=verb, limit=WATCHED + 20)
        first = rf"rank 1 on \S+, step 12, {phase}: holds up the run"
        self.say("P42", self.expect_end(name, ended, WATCHED, [1], first))
        if not any(ring.endswith("/hang.txt") for ring in rings()):
            self.runs.fail(f"{name}: no hang.txt: {rings()}")

    def harmless(self, name):
        pain, fault, overrides = HARMLESS[name]
        code, out, err, seconds = self.runs.run(self.faulty, name, *overrides, fault=fault)
        self.say(f"{pain} {name}: exit code {code} after {seconds:.1f} s")
        if code != 0:
            self.runs.fail(f"{name}: exit code {code}\n{out[-2000:]}\n{err}")
        elif not self.is_final(name):
            self.runs.fail(f"{name}: other weights")

    def flip(self, name):
        """P14: a flipped bit is found at the restart, with the tensor it is in; the step before is used."""
        fault, overrides = FLIPS[name]
        code, out, err, _ = self.runs.run(self.faulty, name, "run.steps=4", *FREE, *overrides, fault=fault)
        if code != 0:
            self.runs.fail(f"{name}: exit code {code}\n{err}")
        code, out, err, _ = self.runs.run(self.fourfold, name, "run.steps=6", *FREE)
        found = re.search(r"step_00000004\.h5: (.*)", err)
        self.say(f"P14 {name}: {found.group(1) if found else err}")
        if code != 0 or not found or "the checksum of elements" not in err or "restart from step 2" not in out:
            self.runs.fail(f"{name}: {code}\n{out}\n{err}")

    def stage(self, name):
        pain, fault, overrides, committed = STAGES[name]
        code, out, err, _ = self.runs.run(self.faulty, name, *overrides, fault=fault, limit=30)
        have = self.runs.committed(name)
        self.say(f"{pain} killed at {name}: committed {have}")
        if code == 0 or have != committed:
            self.runs.fail(f"{name}: exit code {code}, committed {have}, wanted {committed}\n{err}")
        said = self.goes_on(name)
        if f"restart from step {committed[-1]} " not in said:
            self.runs.fail(f"{name}: no restart from step {committed[-1]}\n{said}")
        if name != "after_commit" and "not committed: its save was interrupted" not in said:
            self.runs.fail(f"{name}: the interrupted save is not named\n{said}")

    def replace(self):
        """P03: a save that replaces a damaged checkpoint of its step and is killed leaves no record of the old one."""
        code, _, err, _ = self.runs.run(self.fourfold, "replace", "--stop-at-step", "6")
        base = self.runs.path("replace", "checkpoints", "step_00000006")
        with open(base + ".commit") as record, open(base + ".h5", "r+b") as data:
            data.seek(json.load(record)["datasets"][0]["offset"])
            byte = data.read(1)
            data.seek(-1, os.SEEK_CUR)
            data.write(bytes([byte[0] ^ 1]))
        killed, out, err, _ = self.runs.run(self.faulty, "replace", fault="kill_commit step=6", limit=30)
        have = self.runs.committed("replace")
        self.say(f"P03 killed while step 6 is replaced: committed {have}")
        if code != 75 or killed == 0 or "restart from step 4 " not in out or have != [2, 4]:
            self.runs.fail(f"replace: exit codes {code}, {killed}, committed {have}\n{out}\n{err}")
        if os.path.exists(base + ".rejected"):
            self.runs.fail("replace: what was said of the old step 6 is still there")
        self.goes_on("replace")

    def stop(self, name):
        pain, fault, overrides, step = STOPS[name]
        code, out, err, _ = self.runs.run(self.faulty, name, *overrides, fault=fault, limit=30)
        have = self.runs.committed(name)
        self.say(f"{pain} {name}: exit code {code}, committed {have}")
        if code != 75 or have[-1:] != [step]:
            self.runs.fail(f"{name}: exit code {code}, committed {have}\n{out}\n{err}")
        self.goes_on(name)

    def order(self):
        """P02: data, fsync, rename, record, fsync, rename, fsync of the folder; as many fsyncs on 4 ranks as on one."""
        syncs = {}
        for ranks, mode in ((1, []), (4, []), (4, ASYNC)):
            folder = "order" + "".join(re.findall(r"\w+", f"{ranks}{mode}"))
            code, out, err, _ = self.runs.run(self.faulty, folder, "run.steps=2", *FREE, *mode, fault="log",
                                              ranks=ranks)
            calls = re.findall(r"log rank \d+: (\w+) \S*/(checkpoints\S*)", err)
            short = [f"{call} {path.split('step_00000002')[-1]}" for call, path in calls]
            once = [call for i, call in enumerate(short) if i == 0 or call != short[i - 1]]
            syncs[folder] = sum(call.startswith("fsync") for call in short)
            self.say(f"P02 {folder}: {once}, {syncs[folder]} fsyncs")
            wanted = ["write .h5.tmp", "fsync .h5.tmp", "rename .h5", "write .commit.tmp", "fsync .commit.tmp",
                      "rename .commit", "fsync checkpoints"]
            if code != 0 or once[-len(wanted):] != wanted:
                self.runs.fail(f"{folder}: exit code {code}: {once}\n{err[-1000:] if code else ''}")
        if len(set(syncs.values())) != 1:
            self.runs.fail(f"order: {syncs} fsyncs")

    # P61, P62: an infinite gradient on one rank: all ranks leave the step out, or stop, with the tensor's name.
    INF = "inf rank=1 step=5 phase=gradient_sum"

    def inf_stop(self):
        code, out, err, _ = self.runs.run(self.faulty, "inf_stop", fault=self.INF)
        first = error_lines(err)[:1]
        self.say(f"P62 inf under stop: exit code {code}: {first}")
        if code != 1 or not first or not re.search(r"step 5: loss .*gradient is not finite: \w", first[0]):
            self.runs.fail(f"inf_stop: exit code {code}\n{err}")
        if self.runs.committed("inf_stop") != [2, 4]:
            self.runs.fail(f"inf_stop: committed {self.runs.committed('inf_stop')}")

    def skip_at_most(self, most):
        return ["numerics.non_finite.policy=skip", f"numerics.non_finite.most={most}", "debug.replica_check=1"]

    def inf_skip(self):
        code, out, err, _ = self.runs.run(self.faulty, "inf_skip", *self.skip_at_most(2), fault=self.INF)
        self.say(f"P61 inf under skip: exit code {code}")
        if code != 0 or "step 5 is left out" not in err or "step 6 is left out" in err:
            self.runs.fail(f"inf_skip: exit code {code}\n{out}\n{err}")

    def inf_for_ever(self):
        code, out, err, _ = self.runs.run(self.faulty, "inf_for_ever", *self.skip_at_most(2),
                                          fault=self.INF + " last=12")
        first = error_lines(err)[:1]
        self.say(f"P61 permanent inf under skip: exit code {code}: {first}")
        if code != 1 or not first or not re.search(r"step 7, after 2 left out in a row.*not finite: \w", first[0]):
            self.runs.fail(f"inf_for_ever: exit code {code}\n{err}")

    def inf_restarts(self):
        """P61: a run that is restarted after every other step does not skip for ever; a good step begins anew."""
        run = lambda *words, fault: self.runs.run(self.faulty, "inf_restarts", *self.skip_at_most(3), *words,
                                                  fault=fault)
        code, out, err, _ = run("--stop-at-step", "6", fault=self.INF + " last=12")
        if code != 75 or self.runs.committed("inf_restarts")[-1:] != [6]:
            self.runs.fail(f"inf_restarts: before: exit code {code}\n{out}\n{err}")
        shutil.copytree(self.runs.path("inf_restarts"), self.runs.path("inf_once_more"))
        code, out, err, _ = run(fault="inf rank=1 step=7 last=12 phase=gradient_sum")
        first = error_lines(err)[:1]
        self.say(f"P61 permanent inf under skip, with a restart after step 6: exit code {code}: {first}")
        if code != 1 or not first or not re.search(r"step 8, after 3 left out in a row", first[0]):
            self.runs.fail(f"inf_restarts: exit code {code}\n{out}\n{err}")
        code, out, err, _ = self.runs.run(self.faulty, "inf_once_more", *self.skip_at_most(3),
                                          fault="inf rank=1 step=8 last=10 phase=gradient_sum")
        if code != 0 or err.count("is left out") != 3:
            self.runs.fail(f"inf_once_more: exit code {code}\n{out}\n{err}")

    # P53: the last save starts early enough, exit 75 before the limit; Slurm's end time counts like the deck's.
    ENDLESS = ["run.steps=100000", "checkpoint.every=25", "eval.every=0", *FREE]

    def expect_in_time(self, name, ended, who):
        code, out, err, seconds = ended
        self.say(f"P53 {name}: 8 s by {who}: exit code {code} after {seconds:.1f} s")
        if code != 75 or seconds > 11 or who not in out or not self.runs.committed(name):
            self.runs.fail(f"{name}: exit code {code} after {seconds:.1f} s\n{out}\n{err}")

    def time_limit(self):
        ended = self.runs.run(self.faulty, "limit", *self.ENDLESS, "run.time_limit=8", limit=30)
        self.expect_in_time("limit", ended, "the time limit (run.time_limit)")

    def slurm_limit(self):
        ended = self.runs.run(self.faulty, "slurm_limit", *self.ENDLESS, limit=30,
                              more={"SLURM_JOB_END_TIME": str(int(time.time()) + 8)})
        self.expect_in_time("slurm_limit", ended, "SLURM_JOB_END_TIME")

    def locked(self):
        """P20: locks that another program holds on checkpoints keep nobody from listing, evaluating or going on."""
        code, _, err, _ = self.runs.run(self.fourfold, "locked", "--stop-at-step", "6")
        if code != 75:
            self.runs.fail(f"locked: exit code {code}\n{err}")
        held = [open(path, "r+b") for path in glob.glob(self.runs.path("locked", "checkpoints", "*"))]
        for file in held:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        listed = subprocess.run([self.fourfold, "inspect", self.runs.path("locked"), "--verify"], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if listed.returncode != 0 or len(held) != 6:
            self.runs.fail(f"locked: {len(held)} files; inspect: exit code {listed.returncode}\n{listed.stdout}")
        code, out, err, _ = self.runs.run(self.fourfold, "locked", verb="eval")
        if code != 0:
            self.runs.fail(f"locked: eval: exit code {code}\n{out}\n{err}")
        said = self.goes_on("locked")
        self.say(f"P20 {len(held)} locked files: listed, evaluated, gone on from")
        if "restart from step 6 " not in said:
            self.runs.fail(f"locked: no restart from step 6\n{said}")

    def allow_missing(self):
        """P10: another model's checkpoint is refused with what to type; then its other tensors are read, all told."""
        words = ["run.steps=1", *FREE, f"model.init.from={self.final}", "model.tie_embeddings=true"]
        code, _, err, _ = self.runs.run(self.fourfold, "allow_missing", *words)
        if code != 2 or "not in the model:\n    /params/head.weight" not in err or "checkpoint.allow_missing" not in err:
            self.runs.fail(f"allow_missing: without it: exit code {code}\n{err}")
        code, out, err, _ = self.runs.run(self.fourfold, "allow_missing", *words,
                                          "checkpoint.allow_missing=[head.weight]")
        told = "/params/head.weight of the checkpoint is not in the model and was not read"
        self.say(f"P10 allow_missing: exit code {code}: {told if told in out else out}")
        if code != 0 or told not in out:
            self.runs.fail(f"allow_missing: exit code {code}\n{out}\n{err}")

    def cores(self):
        """P75: two ranks pinned to one core of several are refused with what to type."""
        if os.cpu_count() < 2 or not os.access("/usr/bin/taskset", os.X_OK):
            self.say("NOT TESTED: P75 needs two cores and taskset")
            return
        pinned = ["taskset", "-c", "0"]
        code, out, err, _ = self.runs.run(self.fourfold, "cores", ranks=2, before=pinned)
        self.say(f"P75 two ranks on one core: exit code {code}: {error_lines(err)[:1]}")
        if code != 3 or "rank(s) 0, 1 on " not in err or "FOURFOLD_SHARE_CORES=1" not in err:
            self.runs.fail(f"cores: exit code {code}\n{err}")
        code, out, err, _ = self.runs.run(self.fourfold, "cores", "run.steps=1", *FREE, ranks=2, before=pinned,
                                          more={"FOURFOLD_SHARE_CORES": "1"})
        if code != 0:
            self.runs.fail(f"cores meant: exit code {code}\n{err}")


def main():
    fourfold, faulty, launcher = sys.argv[1], sys.argv[2], sys.argv[3:]
    chosen = [name for name in os.environ.get("FOURFOLD_CASES", "").split(",") if name]
    runs = Runs(launcher)
    begin = time.monotonic()
    try:
        code, out, err, seconds = runs.run(fourfold, "unbroken")
        if code != 0:
            runs.fail(f"the unbroken run: {code}\n{out}\n{err}")
            return 1
        print(f"the unbroken run: {seconds:.1f} s", flush=True)
        cases = Faults(fourfold, faulty, runs).cases()
        names = [name for name in cases if not chosen or name in chosen]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            running = {name: pool.submit(cases[name]) for name in names}
        for name, case in running.items():
            if case.exception() is not None:
                runs.fail(f"{name}: {case.exception()!r}")
        if not names:
            runs.fail(f"no case of these names; there are {' '.join(cases)}")
    finally:
        runs.close()
    print(f"{len(names)} cases in {time.monotonic() - begin:.0f} s, {runs.failures} failures")
    return 1 if runs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
