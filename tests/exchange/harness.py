"""What the tests of `fourfold convert weights` share: the program, the probe of logits, and what is checked of every model."""
import json
import os
import resource
import subprocess
import sys

import numpy as np
from reference import random, read_safetensors

fourfold, probe, launcher = sys.argv[1], sys.argv[2], sys.argv[3:]
full = os.environ.get("FOURFOLD_FULL") == "1"
faults = 0


def check(truth, text):
    global faults
    if not truth:
        faults += 1
        print("FAILED:", text)


def end():
    print(f"{faults} faults")
    sys.exit(1 if faults else 0)


def run(*command, code=0, memory=None):
    """`memory`: bytes of data (all but mapped files) that the program may have."""
    def limit():
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    # OpenBLAS's threads ask again for ever for buffers that a limit refuses.
    environment = os.environ | ({"OPENBLAS_NUM_THREADS": "1"} if memory is not None else {})
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, preexec_fn=limit, env=environment)
    check(done.returncode == code, f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def logits_of(deck, checkpoint, ranks, words, prompts, vocab, folder):
    """Of the program, on a grid: prompts x tokens x vocabulary."""
    prompts.astype("<i4").tofile(folder / "prompts")
    np.zeros(prompts.size * vocab).tofile(folder / "logits")
    run(*launcher, ranks, probe, deck, checkpoint, folder / "prompts", prompts.shape[1], folder / "logits",
        "batch={global: 24, micro_batches: 1}", *words)
    return np.fromfile(folder / "logits").reshape(*prompts.shape, vocab)


def dense(data, depth, row, col):
    return f"parallel.dense={{data: {data}, depth: {depth}, row: {row}, col: {col}}}"


def check_another(kind, folder, vocab, deck, checkpoint, prompts, expected):
    """What is exchanged in this model makes it another one: its logits must not be these."""
    logits = logits_of(deck, checkpoint, 1, [dense(1, 1, 1, 1)], prompts, vocab, folder)
    worst = np.abs(logits - expected).max()
    check(worst > 1e-2, f"{kind}: changes logits by {worst} only")


def compare_logits(kind, folder, config, weights, forward, deck, checkpoint, grids):
    """grids: (ranks, words of the deck). On 8 prompts the program's logits are the reference's to 1e-4."""
    prompts = random.integers(0, config["vocab_size"], (8, 16))
    expected = np.stack([forward(weights, config, ids) for ids in prompts])
    check(np.std(expected) > 0.3, f"{kind}: logits that say nothing")
    for ranks, words in grids:
        logits = logits_of(deck, checkpoint, ranks, words, prompts, config["vocab_size"], folder)
        worst = np.abs(logits - expected).max()
        check(worst < 1e-4, f"{kind} on {words}: logits differ by {worst}")
        print(f"{kind}: {' '.join(words)}: logits within {worst:.1e}")
    return prompts, expected


def check_export(kind, checkpoint, out, want, config, *more):
    """What is exported has these tensors (name -> (type, shape, bytes)) and says of itself what `config` does."""
    run(fourfold, "convert", "weights", checkpoint, "--output", out, *more)
    got = read_safetensors(out)
    check(got.keys() == want.keys(), f"{kind}: other names: {sorted(got.keys() ^ want.keys())}")
    for name in got:
        check(got[name] == want.get(name), f"{kind}: {name} has other bytes")
    again = json.loads((out / "config.json").read_text())
    for key, value in config.items():
        if value is not None and key not in ("n_inner", "eos_token_id", "torch_dtype"):
            check(again.get(key) == value, f"{kind}: config.json {key} is {again.get(key)}, was {value}")
    index = out / "model.safetensors.index.json"
    check(index.exists() == (len(list(out.glob("*.safetensors"))) > 1), f"{kind}: an index where there are several files")
    if index.exists():
        total = json.loads(index.read_text())["metadata"]["total_size"]
        check(total == sum(len(values[2]) for values in want.values()), f"{kind}: total_size")


def write_tokenizer(folder):
    """Byte-level BPE of printable ASCII with one merge, as vocab.json and merges.txt: ids 0 to 95, 100 ends a document."""
    vocab = {chr(33 + i): i for i in range(94)} | {"\u0120": 94, "ab": 95, "<|endoftext|>": 100}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")


def spell_ids(text):
    ids = []
    while text:
        ids.append(95 if text.startswith("ab") else 94 if text[0] == " " else ord(text[0]) - 33)
        text = text[2 if ids[-1] == 95 else 1:]
    return ids


def check_generation(folder, source, run_folder, config, weights, forward, grids):
    """Text through the imported tokenizer (write_tokenizer's): greedy tokens are the ones of whole passes of the reference."""
    prompts = ["ab c", "x", "(ab ab)"]
    want = []
    for text in prompts:
        ids = spell_ids(text)
        start = len(ids)
        while len(ids) < start + 8 and (len(ids) == start or ids[-1] != 100):
            ids.append(int(np.argmax(forward(weights, config, np.array(ids))[-1])))
        want.append((ids[:start], ids[start:]))
    (folder / "prompts.txt").write_text("\n".join(prompts[1:]) + "\n")
    for ranks, words in grids:
        said = run(*launcher, ranks, fourfold, "generate", run_folder / "deck.yaml", "--prompt", prompts[0], "--prompts",
                   folder / "prompts.txt", "--tokens", 8, "--temperature", 0, f"run.folder={run_folder}", *words)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        check([(line["prompt_ids"], line["ids"]) for line in lines] == want, f"generation on {ranks} ranks: {said}, not {want}")
        for line, text in zip(lines, prompts):
            check(line["text"].startswith(text), f"generation on {ranks} ranks: {line['text']} for {text}")
    for name in ("vocab.json", "merges.txt"):
        check((run_folder / "tokenizer" / name).read_bytes() == (source / name).read_bytes(), f"{name} is no copy")
