#!/usr/bin/env python3
"""logits.py FOURFOLD PROBE LAUNCHER...: tiny random GPT-2, Llama and Qwen2 folders, as their papers define the models.

Each is imported by `fourfold convert weights`; logits on 8 prompts must agree with the ones computed here (numpy, fp64) to
1e-4, on 1 rank and on grids of 8; exported again, every tensor must have the same bytes. So with model files of llm.c. Training from the import with a
rate of 0 must leave it as it is. Then what must be refused.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

fourfold, probe, launcher = sys.argv[1], sys.argv[2], sys.argv[3:]
full = os.environ.get("FOURFOLD_FULL") == "1"
random = np.random.default_rng(20261201)
faults = 0


def check(truth, text):
    global faults
    if not truth:
        faults += 1
        print("FAILED:", text)


def run(*command, code=0):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    check(done.returncode == code, f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# --- safetensors, written and read without any code of the program ---

def to_bf16(values):  # values that bf16 holds: their upper halves
    return (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def write_safetensors(path, tensors, dtype):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, values in tensors.items():
        raw = (to_bf16(values) if dtype == "BF16" else values.astype({"F32": "<f4", "F16": "<f2"}[dtype])).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(folder):
    """name -> (dtype, shape, bytes) of all files, and the index if there is one."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            tensors[name] = (entry["dtype"], entry["shape"], raw[8 + size + begin:8 + size + end])
    return tensors


# --- model files of llm.c ---

LLMC_ORDER = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
              "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]


def llmc_bytes(weights, c, version):
    padded = (c["vocab_size"] + 127) // 128 * 128
    head = np.zeros(256, "<i4")
    head[:8] = 20240326, version, c["n_positions"], c["vocab_size"], c["n_layer"], c["n_head"], c["n_embd"], padded
    parts = [weights["wte.weight"], np.zeros((padded - c["vocab_size"], c["n_embd"])), weights["wpe.weight"]]
    for kind in LLMC_ORDER:
        for i in range(c["n_layer"]):
            values = weights[f"h.{i}.{kind}"]
            parts.append(values.T if values.ndim == 2 else values)  # out x in there
    parts += [weights["ln_f.weight"], weights["ln_f.bias"]]
    body = np.concatenate([part.reshape(-1) for part in parts])
    return head.tobytes() + (body.astype("<f4") if version == 3 else to_bf16(body)).tobytes()


# --- the models ---

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v):
    """q: T x H x d; k, v: T x K x d; head h reads KV head h // (H / K)."""
    tokens, heads, size = q.shape
    out = np.zeros_like(q)
    mask = np.triu(np.full((tokens, tokens), -np.inf), 1)
    for head in range(heads):
        of = head * k.shape[1] // heads
        out[:, head] = softmax(q[:, head] @ k[:, of].T / np.sqrt(size) + mask) @ v[:, of]
    return out.reshape(tokens, heads * size)


def layer_norm(x, w, b, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + eps) * w + b


def gpt2(w, c, ids):
    t, d, heads = len(ids), c["n_embd"], c["n_head"]
    x = w["wte.weight"][ids] + w["wpe.weight"][:t]
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        h = layer_norm(x, w[p + "ln_1.weight"], w[p + "ln_1.bias"], c["layer_norm_epsilon"])
        q, k, v = np.split(h @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"], 3, -1)
        a = attend(*(part.reshape(t, heads, d // heads) for part in (q, k, v)))
        x = x + a @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        h = layer_norm(x, w[p + "ln_2.weight"], w[p + "ln_2.bias"], c["layer_norm_epsilon"])
        h = h @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"]
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h ** 3)))
        x = x + h @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    return layer_norm(x, w["ln_f.weight"], w["ln_f.bias"], c["layer_norm_epsilon"]) @ w["wte.weight"].T


def rms_norm(x, w, eps):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) * w


def frequencies(size, theta, scaling):
    turns = theta ** (-np.arange(0, size, 2) / size)
    kind = (scaling or {}).get("rope_type", "default")
    if kind == "linear":
        return turns / scaling["factor"]
    if kind != "llama3":  # dynamic: for contexts beyond max_position_embeddings
        return turns
    scaled = []
    for turn in turns:  # as the Llama 3.1 report's code has it: by wavelength
        wavelength, original = 2 * np.pi / turn, scaling["original_max_position_embeddings"]
        if wavelength < original / scaling["high_freq_factor"]:
            scaled.append(turn)
        elif wavelength > original / scaling["low_freq_factor"]:
            scaled.append(turn / scaling["factor"])
        else:
            smooth = (original / wavelength - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"])
            scaled.append((1 - smooth) * turn / scaling["factor"] + smooth * turn)
    return np.array(scaled)


def rope(x, theta, scaling):
    """Elements j and j + d/2 of a head turn by position * theta^(-2j/d), or what the scaling makes of that."""
    tokens, _, size = x.shape
    angles = np.outer(np.arange(tokens), frequencies(size, theta, scaling))[:, None, :]
    a, b = x[..., :size // 2], x[..., size // 2:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def llama(w, c, ids):
    t, heads, kv = len(ids), c["num_attention_heads"], c["num_key_value_heads"]
    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = rms_norm(x, w[p + "input_layernorm.weight"], c["rms_norm_eps"])

        def project(part, count):
            y = h @ w[f"{p}self_attn.{part}_proj.weight"].T + w.get(f"{p}self_attn.{part}_proj.bias", 0)
            return y.reshape(t, count, -1)
        q, k = (rope(project(part, n), c["rope_theta"], c["rope_scaling"]) for part, n in (("q", heads), ("k", kv)))
        x = x + attend(q, k, project("v", kv)) @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        g = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    return rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"]) @ head.T


def gpt2_model():
    d, f, v, t, layers = 32, 128, 101, 24, 2
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": v, "n_positions": t, "n_ctx": t,
              "n_embd": d, "n_layer": layers, "n_head": 4, "n_inner": None, "activation_function": "gelu_new",
              "layer_norm_epsilon": 1e-5, "eos_token_id": 100, "torch_dtype": "float32"}
    shapes = {"wte.weight": (v, d), "wpe.weight": (t, d), "ln_f.weight": (d,), "ln_f.bias": (d,)}
    for i in range(layers):
        p = f"h.{i}."
        shapes |= {p + "ln_1.weight": (d,), p + "ln_1.bias": (d,), p + "ln_2.weight": (d,), p + "ln_2.bias": (d,),
                   p + "attn.c_attn.weight": (d, 3 * d), p + "attn.c_attn.bias": (3 * d,),
                   p + "attn.c_proj.weight": (d, d), p + "attn.c_proj.bias": (d,),
                   p + "mlp.c_fc.weight": (d, f), p + "mlp.c_fc.bias": (f,),
                   p + "mlp.c_proj.weight": (f, d), p + "mlp.c_proj.bias": (d,)}
    return config, shapes, gpt2


def llama_model(qwen, tied, scaling=None):
    d, f, v, layers, heads, kv, size = 32, 56, 103, 2, 4, 2, 12  # heads x size is not d
    config = {"model_type": "qwen2" if qwen else "llama", "vocab_size": v, "max_position_embeddings": 24,
              "hidden_size": d, "intermediate_size": f, "num_hidden_layers": layers, "num_attention_heads": heads,
              "num_key_value_heads": kv, "head_dim": size, "hidden_act": "silu", "rms_norm_eps": 1e-6,
              "rope_theta": 500.0, "rope_scaling": scaling, "tie_word_embeddings": tied, "eos_token_id": [2, 3]}
    shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not tied:
        shapes["lm_head.weight"] = (v, d)
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
                   p + "self_attn.o_proj.weight": (d, heads * size), p + "mlp.gate_proj.weight": (f, d),
                   p + "mlp.up_proj.weight": (f, d), p + "mlp.down_proj.weight": (d, f)}
        for part, count in (("q", heads), ("k", kv), ("v", kv)):
            shapes[f"{p}self_attn.{part}_proj.weight"] = (count * size, d)
            if qwen:
                shapes[f"{p}self_attn.{part}_proj.bias"] = (count * size,)
    return config, shapes, llama


def random_weights(shapes, dtype):
    weights = {}
    for name, shape in shapes.items():
        values = random.normal(0, 0.25, shape).astype(np.float32) + (1 if name.endswith("norm.weight") or ("ln_" in name and name.endswith("weight")) else 0)
        if dtype == "BF16":
            values = (values.astype("<f4").view("<u4") & 0xffff0000).view("<f4")
        if dtype == "F16":
            values = values.astype("<f2")
        weights[name] = values.astype(np.float64)
    return weights


GRIDS = [(2, 1, 2, 2), (1, 2, 2, 2), (1, 8, 1, 1), (8, 1, 1, 1), (1, 1, 4, 2), (1, 1, 2, 4)]  # data, depth, row, col


def compare_logits(kind, folder, config, weights, forward):
    checkpoint = folder / f"{kind}-run" / "checkpoints" / "step_00000000.h5"
    deck = folder / f"{kind}-run" / "deck.yaml"
    tokens = 16
    prompts = random.integers(0, config["vocab_size"], (8, tokens))
    prompts.astype("<i4").tofile(folder / "prompts")
    expected = np.stack([forward(weights, config, ids) for ids in prompts])
    check(np.std(expected) > 0.5, f"{kind}: logits that say nothing")
    grids = GRIDS if full else GRIDS[:2] if kind == "llama" else GRIDS[:1] if kind in ("gpt2", "llama3") else []
    for data, depth, row, col in [(1, 1, 1, 1)] + grids:
        shape = f"parallel.dense={{data: {data}, depth: {depth}, row: {row}, col: {col}}}"
        run(*launcher, data * depth * row * col, probe, deck, checkpoint, folder / "prompts", tokens, folder / "logits",
            shape, "batch={micro: 1, micro_batches: 1}")
        logits = np.fromfile(folder / "logits").reshape(expected.shape)
        worst = np.abs(logits - expected).max()
        check(worst < 1e-4, f"{kind} on {shape}: logits differ by {worst}")
        print(f"{kind}: data {data} depth {depth} row {row} col {col}: logits within {worst:.1e}")
    return deck, checkpoint


def show(kind, folder, config, shapes, forward, dtype, prefix):
    weights = random_weights(shapes, dtype)
    source = folder / kind
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    stored = {(prefix if name != "lm_head.weight" else "") + name: values for name, values in weights.items()}
    if kind == "gpt2":
        write_tokenizer(source)
    if kind.startswith("gpt2"):  # a mask buffer, which holds no weights
        stored[prefix + "h.0.attn.bias"] = np.tril(np.ones((1, 1, 4, 4)))
    write_safetensors(source / "model.safetensors", stored, dtype)
    run(fourfold, "convert", "weights", source, "--output", folder / f"{kind}-run")
    deck, checkpoint = compare_logits(kind, folder, config, weights, forward)

    # Out again, in one file and in several.
    want = {name: values for name, values in read_safetensors(source).items() if not name.endswith(".attn.bias")}
    want = {name.removeprefix("transformer."): values for name, values in want.items()}
    for shard in (10 ** 9, 20000):
        out = folder / f"{kind}-{shard}"
        run(fourfold, "convert", "weights", checkpoint, "--output", out, "--shard-bytes", shard)
        got = read_safetensors(out)
        check(got.keys() == want.keys(), f"{kind}: other names: {sorted(got.keys() ^ want.keys())}")
        for name in got:
            check(got[name] == want.get(name), f"{kind}: {name} has other bytes")
        again = json.loads((out / "config.json").read_text())
        for key, value in config.items():
            if value is not None and key not in ("architectures", "n_inner", "eos_token_id", "torch_dtype"):
                check(again.get(key) == value, f"{kind}: config.json {key} is {again.get(key)}, was {value}")
        index = out / "model.safetensors.index.json"
        check(index.exists() == (shard == 20000), f"{kind}: an index where there are several files")
        if index.exists():
            total = json.loads(index.read_text())["metadata"]["total_size"]
            check(total == sum(len(values[2]) for values in want.values()), f"{kind}: total_size")
    if kind == "gpt2":
        show_generation(folder, source, config, weights, forward)
    return source, deck, checkpoint


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


def show_generation(folder, source, config, weights, forward):
    """Text through the imported tokenizer; greedy tokens are the ones of whole passes here."""
    run_folder, prompts = folder / "gpt2-run", ["ab c", "x", "(ab ab)"]
    want = []
    for text in prompts:
        ids = spell_ids(text)
        start = len(ids)
        while len(ids) < start + 8 and (len(ids) == start or ids[-1] != 100):
            ids.append(int(np.argmax(forward(weights, config, np.array(ids))[-1])))
        want.append((ids[:start], ids[start:]))
    (folder / "prompts.txt").write_text("\n".join(prompts[1:]) + "\n")
    for ranks, more in ((1, []), (4, ["parallel.stages=2", "parallel.dense={row: 2}"])):
        said = run(*launcher, ranks, fourfold, "generate", run_folder / "deck.yaml", "--prompt", prompts[0], "--prompts",
                   folder / "prompts.txt", "--tokens", 8, "--temperature", 0, f"run.folder={run_folder}", *more)
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        check([(line["prompt_ids"], line["ids"]) for line in lines] == want, f"generation on {ranks} ranks: {said}, not {want}")
        for line, text in zip(lines, prompts):
            check(line["text"].startswith(text), f"generation on {ranks} ranks: {line['text']} for {text}")
    for name in ("vocab.json", "merges.txt"):
        for out in (run_folder / "tokenizer", folder / "gpt2-20000"):
            check((out / name).read_bytes() == (source / name).read_bytes(), f"{out / name} is no copy")


def show_llmc(kind, folder, version):
    config, shapes, forward = gpt2_model()
    weights = random_weights(shapes, "F32" if version == 3 else "BF16")
    source = folder / f"{kind}.bin"
    source.write_bytes(llmc_bytes(weights, config, version))
    run(fourfold, "convert", "weights", source, "--output", folder / f"{kind}-run")
    _, checkpoint = compare_logits(kind, folder, config, weights, forward)
    again = folder / f"{kind}-again.bin"
    run(fourfold, "convert", "weights", checkpoint, "--output", again, "--to", "llmc")
    check(again.read_bytes() == source.read_bytes(), f"{kind}: other bytes after import and export")
    run(fourfold, "convert", "weights", checkpoint, "--output", folder / f"{kind}-folder")
    for name, (_, shape, raw) in read_safetensors(folder / f"{kind}-folder").items():
        want = weights[name].astype("<f4") if version == 3 else to_bf16(weights[name])
        check(list(want.shape) == shape and want.tobytes() == raw, f"{kind}: {name} has other bytes as a tensor")
    said = run(fourfold, "convert", "weights", checkpoint, "--output", again, "--to", "llmc", code=2)
    check("is there already" in said, said)
    said = run(fourfold, "convert", "weights", checkpoint, "--output", folder / "f16.bin", "--to", "llmc", "--type", "F16", code=2)
    check("type --type F32 or BF16" in said and not (folder / "f16.bin").exists(), said)
    raw = source.read_bytes()
    for bad, text in ((raw[:-2], "make a file of"), (raw + b"x", "make a file of"), (raw[:500], "ends inside its head"),
                      (raw[:4] + b"\2" + raw[5:], "version 2 of a model's weights; known: 3 (fp32) and 5 (bf16)"),
                      (raw[:20] + b"\5" + raw[21:], "5 heads do not divide 32 channels"),
                      (raw[:24] + b"\0" + raw[25:], "a channels of 0"),
                      (raw[:28] + b"\1" + raw[29:], "a padded vocabulary of 1 below")):
        (folder / "bad.bin").write_bytes(bad)
        said = run(fourfold, "convert", "weights", folder / "bad.bin", "--output", folder / "none", code=2)
        check(text in said, f"wanted: {text}\nsaid: {said}")


def main(folder):
    source, deck, checkpoint = show("llama", folder, *llama_model(False, False), "F32", "")
    show("gpt2", folder, *gpt2_model(), "F32", "transformer.")
    show("qwen2", folder, *llama_model(True, True), "BF16", "")
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    check(len(set(np.round(frequencies(12, 500.0, llama3) / frequencies(12, 500.0, None), 3))) > 3, "one kind of angle")
    show("llama3", folder, *llama_model(False, False, llama3), "F32", "")
    show("linear", folder, *llama_model(True, False, {"rope_type": "linear", "factor": 2.5}), "F32", "")
    if full:
        show("dynamic", folder, *llama_model(False, False, {"rope_type": "dynamic", "factor": 4.0}), "F32", "")
        show("gpt2-plain", folder, *gpt2_model(), "F16", "")
        show("llama-tied", folder, *llama_model(False, True), "F16", "")

    show_llmc("llmc", folder, 3)
    show_llmc("llmc-bf16", folder, 5)
    said = run(fourfold, "convert", "weights", checkpoint, "--output", folder / "l.bin", "--to", "llmc", code=2)
    check("they hold GPT-2" in said, said)

    # A run that starts from it: fresh optimizer, step 1 first; with a rate of 0 the weights stay.
    log = run(*launcher, 2, fourfold, "train", deck, f"run.folder={folder}/tuned", f"model.init.from={checkpoint}",
              "run.steps=1", "optimizer={kind: adamw, lr: 1e-30}", "batch={global: 2}", "data.samples=2")
    check("steps 1 to 1" in log and str(checkpoint) in log, f"the start is not said:\n{log}")
    run(fourfold, "convert", "weights", folder / "tuned", "--output", folder / "again")
    check(read_safetensors(folder / "again") == read_safetensors(source), "a rate of 0 changed the weights")

    # Refused, by name.
    def refuse(config, text, tensors=None):
        bad = folder / "bad"
        bad.mkdir(exist_ok=True)
        (bad / "config.json").write_text(json.dumps(config))
        write_safetensors(bad / "model.safetensors", tensors or {}, "F32")
        said = run(fourfold, "convert", "weights", bad, "--output", folder / "none", code=2)
        check(text in said, f"wanted: {text}\nsaid: {said}")
        check(not (folder / "none").exists(), "a refused import left something")
    config, shapes, _ = llama_model(False, False)
    refuse(config | {"model_type": "mamba"}, "model_type mamba is not built; built: gpt2, llama, qwen2")
    refuse(config | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling: low_freq_factor must be")
    refuse(config | {"rope_scaling": llama3 | {"low_freq_factor": 4}}, "low_freq_factor below high_freq_factor")
    refuse(config | {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "built: rope_type default, linear, llama3, dynamic")
    refuse(config | {"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor must be 1 or more")
    refuse(config | {"hidden_act": "gelu"}, "hidden_act \"gelu\" is not built; built: silu")
    refuse(config | {"attention_bias": True}, "attention_bias")
    refuse({key: value for key, value in config.items() if key != "hidden_size"}, "hidden_size is missing")
    weights = random_weights(shapes, "F32")
    name = "model.layers.1.self_attn.k_proj.weight"
    refuse(config, f"{name} is missing", {key: value for key, value in weights.items() if key != name})
    refuse(config, "model.layers.9.x is not expected", weights | {"model.layers.9.x": np.ones(1)})
    refuse(config, f"{name} is 32 x 24, the config wants 24 x 32", weights | {name: weights[name].T})
    said = run(fourfold, "convert", "weights", source, "--output", folder / "llama-run", code=2)
    check("holds checkpoints already" in said, said)


with tempfile.TemporaryDirectory() as name:
    main(Path(name))
print(f"{faults} faults")
sys.exit(1 if faults else 0)
