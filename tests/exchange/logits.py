#!/usr/bin/env python3
"""logits.py FOURFOLD PROBE LAUNCHER...: tiny random GPT-2, Llama and Qwen2 folders, as their papers define the models.

Each is imported by `fourfold convert weights`; logits on 8 prompts must agree with the ones of reference.py to 1e-4, on 1 rank
and on grids of 8; exported again, every tensor must have the same bytes. So with model files of llm.c. Training from the
import with a rate of 0 must leave it as it is. Then what must be refused.
"""
import json
import tempfile
from pathlib import Path

import numpy as np
from harness import (check, check_another, check_export, check_generation, compare_logits, dense, end, fourfold, full, launcher, run,
                     write_tokenizer)
from reference import (frequencies, gpt2_model, llama_model, random_weights, read_safetensors, to_bf16, write_safetensors)

GRIDS = [(2, 1, 2, 2), (1, 2, 2, 2), (1, 8, 1, 1), (8, 1, 1, 1), (1, 1, 4, 2), (1, 1, 2, 4)]  # data, depth, row, col


def grids_of(kind):
    grids = GRIDS if full else GRIDS[:2] if kind == "llama" else GRIDS[:1] if kind in ("gpt2", "llama3") else []
    return [(1, [dense(1, 1, 1, 1)])] + [(8, [dense(*grid)]) for grid in grids]


def run_of(kind, folder):
    return folder / f"{kind}-run" / "deck.yaml", folder / f"{kind}-run" / "checkpoints" / "step_00000000.h5"


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
    deck, checkpoint = run_of(kind, folder)
    compare_logits(kind, folder, config, weights, forward, deck, checkpoint, grids_of(kind))

    # Out again, in one file and in several.
    want = {name: values for name, values in read_safetensors(source).items() if not name.endswith(".attn.bias")}
    want = {name.removeprefix("transformer."): values for name, values in want.items()}
    for shard in (10 ** 9, 20000):
        check_export(kind, checkpoint, folder / f"{kind}-{shard}", want, config, "--shard-bytes", shard)
    check((folder / f"{kind}-20000" / "model.safetensors.index.json").exists(), f"{kind}: one file of more than 20000 bytes")
    if kind == "gpt2":
        check_generation(folder, source, folder / "gpt2-run", config, weights, forward,
                         ((1, []), (4, ["parallel.stages=2", "parallel.dense={row: 2}"])))
        for name in ("vocab.json", "merges.txt"):
            check((folder / "gpt2-20000" / name).read_bytes() == (source / name).read_bytes(), f"exported {name} is no copy")
    return source, deck, checkpoint


def show_rows(folder, config, shapes, forward):
    """P68: q and k with the rows of a head as interleaved pairs (a b c d for a c b d) are another model."""
    weights = random_weights(shapes, "F32")
    prompts = np.arange(8 * 16).reshape(8, 16) * 7 % config["vocab_size"]
    expected = np.stack([forward(weights, config, ids) for ids in prompts])
    for part, heads in (("q", config["num_attention_heads"]), ("k", config["num_key_value_heads"])):
        other = dict(weights)
        for name in weights:
            if name.endswith(f"{part}_proj.weight"):
                rows = weights[name].reshape(heads, 2, -1, config["hidden_size"])
                other[name] = rows.swapaxes(1, 2).reshape(weights[name].shape)
        source = folder / f"rows-{part}"
        source.mkdir()
        (source / "config.json").write_text(json.dumps(config))
        write_safetensors(source / "model.safetensors", other, "F32")
        run(fourfold, "convert", "weights", source, "--output", folder / f"rows-{part}-run")
        check_another(f"P68: interleaved rows of {part}", folder, config["vocab_size"], *run_of(f"rows-{part}", folder), prompts,
                      expected)


def show_tied(folder, source, config):
    """P69: a tied head that is there once more is read, and left out again; an untied one is wanted."""
    stored = read_safetensors(source)
    weights = {name: np.frombuffer(raw, "<u2").reshape(shape) for name, (_, shape, raw) in stored.items()}
    check(config["tie_word_embeddings"] and "lm_head.weight" not in stored, "P69: not the model that is meant")
    values = {name: (raw.astype("<u4") << 16).view("<f4") for name, raw in weights.items()}
    twice = folder / "twice"
    twice.mkdir()
    write_safetensors(twice / "model.safetensors", values | {"lm_head.weight": values["model.embed_tokens.weight"]}, "BF16")
    (twice / "config.json").write_text(json.dumps(config))
    run(fourfold, "convert", "weights", twice, "--output", folder / "twice-run")
    check_export("P69", folder / "twice-run", folder / "twice-out", stored, config)
    (twice / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    write_safetensors(twice / "model.safetensors", values, "BF16")
    said = run(fourfold, "convert", "weights", twice, "--output", folder / "none", code=2)
    check("lm_head.weight is missing" in said, f"P69: {said}")


def show_llmc(kind, folder, version):
    config, shapes, forward = gpt2_model()
    weights = random_weights(shapes, "F32" if version == 3 else "BF16")
    source = folder / f"{kind}.bin"
    source.write_bytes(llmc_bytes(weights, config, version))
    run(fourfold, "convert", "weights", source, "--output", folder / f"{kind}-run")
    deck, checkpoint = run_of(kind, folder)
    compare_logits(kind, folder, config, weights, forward, deck, checkpoint, grids_of(kind))
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
    qwen = show("qwen2", folder, *llama_model(True, True), "BF16", "")
    show_tied(folder, qwen[0], llama_model(True, True)[0])
    show_rows(folder, *llama_model(False, False))
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
    refuse(config | {"model_type": "mamba"}, "model_type mamba is not built; built: gpt2, llama, qwen2, mixtral, qwen2_moe")
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
end()
