"""A small run of the real program for faults.py and kill.py, and helpers around it."""
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

FULL = os.environ.get("FOURFOLD_FULL") == "1"
SEED = int(os.environ.get("FOURFOLD_SEED", "20261201"))

DECK = """
run:        {name: small, folder: run, steps: 12, seed: 11}
model:      {kind: transformer, layers: 2, hidden: 32, heads: 4, kv_heads: 2, head_dim: 8, vocab: 257, sequence: 16,
             positions: rope, norm: rms, ffn: {kind: swiglu, hidden: 48}, dropout: 0.1}
data:       {train: [text.txt], valid_fraction: 0.05}
batch:      {global: 16, micro_batches: 2}
optimizer:  {kind: adamw, lr: 3.0e-3, weight_decay: 0.1, clip: 1.0, schedule: {kind: cosine, warmup: 5, final: 3.0e-4}}
precision:  {compute: fp32}
numerics:   {deterministic: true}
eval:       {every: 5, samples: 32}
checkpoint: {every: 2, keep: 3}
"""


class Runs:
    """Folders of runs, and the launcher."""

    def __init__(self, launcher, ranks=4):
        self.launcher = launcher
        self.ranks = ranks
        self.failures = 0
        self.lock = threading.Lock()
        self.work = tempfile.mkdtemp(prefix="fourfold-")
        with open(os.path.join(self.work, "text.txt"), "w") as text:
            for i in range(1500):
                text.write(f"line {i} of a text in which {i * 7 % 13} follows {i % 10}\n")
        with open(os.path.join(self.work, "small.yaml"), "w") as deck:
            deck.write(DECK)

    def close(self):
        shutil.rmtree(self.work, ignore_errors=True)

    def fail(self, message):
        with self.lock:
            print("FAILED:", message, flush=True)
            self.failures += 1

    def environment(self, fault=""):
        more = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                    OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_orte_execute_quiet="0", FOURFOLD_FAULT=fault)
        return {**os.environ, **more}

    def start(self, program, folder, *words, fault="", ranks=None, verb="train", before=(), more={}):
        """`before`: words before the launcher; `more`: of the environment."""
        command = [*before, *self.launcher, str(ranks or self.ranks), program, verb, "small.yaml",
                   f"run.folder={folder}", *words]
        return subprocess.Popen(command, cwd=self.work, env={**self.environment(fault), **more},
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                errors="replace")

    def run(self, program, folder, *words, limit=60, **options):
        """Returns exit code, standard output, standard error, seconds. The options are start()'s."""
        begin = time.monotonic()
        job = self.start(program, folder, *words, **options)
        try:
            out, err = job.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            job.kill()
            out, err = job.communicate()
            self.fail(f"{folder} {options}: still there after {limit} s\n{out[-2000:]}\n{err[-2000:]}")
            return -1, out, err, limit
        return job.returncode, out, err, time.monotonic() - begin

    def path(self, *parts):
        return os.path.join(self.work, *parts)

    def bytes_of(self, *parts):
        with open(self.path(*parts), "rb") as file:
            return file.read()

    def committed(self, folder):
        where = self.path(folder, "checkpoints")
        if not os.path.isdir(where):
            return []
        names = [re.fullmatch(r"step_(\d+)\.commit", name) for name in os.listdir(where)]
        return sorted(int(name.group(1)) for name in names if name)


def rank_processes(job):
    """The process ids of a job's living ranks: the launcher's children that are no launcher."""
    children = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                text = file.read()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        if int(rest[1]) == job.pid and rest[0] != "Z" and name.startswith("fourfold"):
            children.append(int(entry))
    return sorted(children)
