#!/usr/bin/env python3
"""experts.py FOURFOLD PROBE LAUNCHER...: tiny random Mixtral and Qwen2-MoE folders, with experts by themselves and stacked.

Logits on 8 prompts must agree with those of reference.py to 1e-4, on 1 rank and on grids of experts and stages; with two experts
(or gate and up) exchanged they must not. Exported again, in both layouts, every tensor must have the same bytes, also after
steps on such grids. Runs start from the imports, on the loss that the reference has, and speak. What T0 and T0-MoE learn is
read by the reference as it is by the program.
"""
import json
import re
import tempfile
from pathlib import Path

import numpy as np
from harness import (check, check_another, check_export, check_generation, compare_logits, dense, end, fourfold, full, launcher, logits_of, run,
                     write_tokenizer)
from reference import (has_experts, llama, mixtral_model, qwen2_moe_model, random_weights, read_safetensors, stacked,
                       write_safetensors)

ONE = (1, [dense(1, 1, 1, 1)])
GRIDS = [(8, [dense(2, 1, 2, 2), "parallel.moe={expert: 4}"]),
         (8, ["parallel.stages=2", dense(2, 1, 2, 1), "parallel.moe={expert: 4}"]),
         (8, [dense(1, 2, 2, 2), "parallel.moe={expert: 2, row: 2, col: 2}"]),
         (8, [dense(8, 1, 1, 1), "parallel.moe={expert: 4, row: 2}", "model.moe.dispatcher=allgather"]),
         (8, [dense(1, 8, 1, 1), "parallel.moe={replica: 8}", "model.moe.permute=fused_weight"]),
         (8, ["parallel.stages=2", dense(1, 1, 4, 1), "parallel.moe={expert: 2, col: 2}", "parallel.sequence_shard=true"]),
         (6, [dense(3, 1, 2, 1), "parallel.moe={expert: 3, col: 2}"])]


MEMORY = 128 << 20  # bytes of data; the program without a model takes more than a third of it


def write_folder(folder, config, weights, dtype="F32"):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights, dtype)
    return folder


def run_of(folder):
    return folder / "deck.yaml", folder / "checkpoints" / "step_00000000.h5"


def import_one(source, run_folder):
    run(fourfold, "convert", "weights", source, "--output", run_folder)
    return run_of(run_folder)


def exchanged(weights, a, b):
    """Each tensor whose name has `a` with the one that has `b` in its place, and back."""
    return {name: weights[name.replace(a, b) if a in name else name.replace(b, a)] for name in weights}


def show(kind, folder, model, dtype, grids):
    config, shapes, forward = model
    weights = random_weights(shapes, dtype)
    together = stacked(weights, config)
    source = write_folder(folder / kind, config, weights, dtype)
    other = write_folder(folder / f"{kind}-stacked", config, together, dtype)
    deck, checkpoint = import_one(source, folder / f"{kind}-run")
    prompts, expected = compare_logits(kind, folder, config, weights, forward, deck, checkpoint, [ONE] + grids)

    # The other layout holds the same; both ways out of either.
    _, from_stacked = import_one(other, folder / f"{kind}-stacked-run")
    for number, of in enumerate((checkpoint, from_stacked)):
        check_export(kind, of, folder / f"{kind}-out{number}", read_safetensors(source), config, "--shard-bytes", 30000)
        check_export(kind, of, folder / f"{kind}-stacked-out{number}", read_safetensors(other), config, "--experts", "stacked")
    check((folder / f"{kind}-out0" / "model.safetensors.index.json").exists(), f"{kind}: one file of more than 30000 bytes")
    _, again = import_one(folder / f"{kind}-out1", folder / f"{kind}-again-run")  # from several files
    check_export(kind, again, folder / f"{kind}-again", read_safetensors(other), config, "--experts", "stacked")
    got = [logits_of(deck, of, *grids[0], prompts, config["vocab_size"], folder) for of in (checkpoint, from_stacked)]
    check((got[0] == got[1]).all(), f"{kind}: P72: layouts give different logits")
    return source, config, weights, forward, deck, checkpoint, prompts, expected


def show_exchanges(folder, config, weights, deck, prompts, expected):
    """Experts 0 and 1 exchanged, or gate and up, is another model: the comparison must see it."""
    layer = f"model.layers.{config['num_hidden_layers'] - 1}.block_sparse_moe.experts."
    for number, (a, b) in enumerate(((layer + "0.", layer + "1."), (".w1.", ".w3."))):
        source = write_folder(folder / f"exchanged{number}", config, exchanged(weights, a, b))
        _, checkpoint = import_one(source, folder / f"exchanged{number}-run")
        check_another(f"P72: {a} and {b} exchanged", folder, config["vocab_size"], deck, checkpoint, prompts, expected)


def cross_entropy(weights, config, forward, ids):
    """Mean over the sequences' targets; ids: sequences x (tokens + 1)."""
    losses = []
    for sequence in ids:
        logits = forward(weights, config, sequence[:-1])
        top = logits.max(-1, keepdims=True)
        logs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
        losses.append(-logs[np.arange(len(sequence) - 1), sequence[1:]].mean())
    return np.mean(losses)


def show_training(kind, folder, source, config, weights, forward, deck, checkpoint):
    """Runs of its own from the import, on a grid with experts and a pipeline and on one rank."""
    sequences, tokens = 8, config["max_position_embeddings"]
    stream = np.random.default_rng(3).integers(0, config["vocab_size"], sequences * tokens + 1)
    stream.astype("<u2").tofile(folder / "tokens.bin")
    ids = np.stack([stream[i * tokens:(i + 1) * tokens + 1] for i in range(sequences)])
    expected = cross_entropy(weights, config, forward, ids)
    words = [f"model.init.from={checkpoint}", "data.kind=files", f"data.train=[{folder}/tokens.bin]", "data.raw=u16",
             "batch={global: 8, micro_batches: 2}", "model.moe.balance.aux=0"]
    learning = ["run.steps=4", "optimizer={kind: adamw, lr: 3.0e-3}"]
    losses = []
    for number, (ranks, grid) in enumerate([ONE, GRIDS[1]]):
        out = folder / f"{kind}-trained{number}"
        run(*launcher, ranks, fourfold, "train", deck, f"run.folder={out}", *words, *learning, *grid)
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses.append([step["loss"] for step in steps if "grad_norm" in step])
    check(len(losses[0]) == 4 and abs(losses[0][0] - expected) < 1e-5, f"{kind}: first loss {losses[0]}, not {expected}")
    check(np.abs(np.subtract(*losses)).max() < 1e-4, f"{kind}: losses on one rank and on {GRIDS[1]}: {losses}")
    check(losses[0][3] < losses[0][0] - 0.1, f"{kind}: nothing is learnt: {losses[0]}")

    # A rate of nothing leaves every byte, through experts, stages, save and export.
    still = folder / f"{kind}-still"
    run(*launcher, 8, fourfold, "train", deck, f"run.folder={still}", *words, *GRIDS[1][1], "run.steps=1",
        "optimizer={kind: adamw, lr: 1e-30}")
    check_export(kind, still, folder / f"{kind}-still-out", read_safetensors(source), config | {"router_aux_loss_coef": None, "output_router_logits": None})

    # What was learnt is the same model to the reference.
    learnt = folder / f"{kind}-trained1"
    read_back(kind, folder, deck, learnt, forward, GRIDS[2])


def read_back(kind, folder, deck, run_folder, forward, grid):
    """The newest checkpoint of a run of this deck, exported: the reference's logits are the program's."""
    out = folder / f"{kind}-{run_folder.name}-read"
    run(fourfold, "convert", "weights", run_folder, "--output", out)
    config = json.loads((out / "config.json").read_text())
    stored = read_safetensors(out)
    check({dtype for dtype, _, _ in stored.values()} == {"F32"}, f"{kind}: types of {out}")
    weights = {name: np.frombuffer(raw, "<f4").reshape(shape).astype(np.float64) for name, (_, shape, raw) in stored.items()}
    newest = sorted((run_folder / "checkpoints").glob("step_*.h5"))[-1]
    compare_logits(kind, folder, config, weights, forward, deck, newest, [grid])
    return config, stored


def show_t0(folder):
    """P68, P69, P70 on the fixtures: vocabulary 257 over 4 ranks of row, exported unpadded."""
    inputs = Path(__file__).parent.parent.parent / "inputs"
    few = ["run.steps=2", "optimizer.lr=1.0e-2", "model.init.std=0.2", "model.init.scale_residual=false"]
    for deck, ranks, grid in (("t0.yaml", 4, [dense(1, 1, 4, 1)]),
                              ("t0_moe.yaml", 8, ["parallel.stages=2", dense(2, 1, 2, 1), "parallel.moe={expert: 4}"])):
        kind = deck.removesuffix(".yaml")
        out = folder / kind
        run(*launcher, ranks, fourfold, "train", inputs / deck, f"run.folder={out}", *few, *grid)
        config, stored = read_back(kind, folder, inputs / deck, out, llama, (ranks, grid))
        check(config["vocab_size"] == 257, f"P70: vocab_size {config['vocab_size']}")
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            check(stored[name][1] == [257, 64], f"P70: {name} is {stored[name][1]}")
        check(config["tie_word_embeddings"] is False, "P69: an untied head is said to be tied")
    check(config["model_type"] == "mixtral" and has_experts(config, 0), f"{config['model_type']} is what t0_moe is exported as")


def show_refusals(folder, source, config, weights):
    def refuse(changes, text, tensors=None):
        bad = folder / "bad"
        bad.mkdir(exist_ok=True)
        (bad / "config.json").write_text(json.dumps(config | changes))
        write_safetensors(bad / "model.safetensors", weights if tensors is None else tensors, "F32")
        said = run(fourfold, "convert", "weights", bad, "--output", folder / "none", code=2)
        check(text in said, f"wanted: {text}\nsaid: {said}")
        check(not (folder / "none").exists(), "a refused import left something")
    block = "model.layers.1.block_sparse_moe."
    name = block + "experts.5.w2.weight"
    refuse({}, f"{name} is missing", {key: value for key, value in weights.items() if key != name})
    refuse({"num_local_experts": 5}, f"{name} is not expected")
    refuse({"num_local_experts": 7}, f"{block}experts.6.w1.weight is missing")
    refuse({"num_local_experts": 7}, f"{block}gate.weight is 6 x 32, the config wants 7 x 32")
    together = stacked(weights, config)
    fused = "model.layers.0.mlp.experts.gate_up_proj"
    refuse({}, f"{fused} is 6 x 32 x 40, the config wants 6 x 40 x 32",
           together | {fused: together[fused].transpose(0, 2, 1)})
    refuse({}, f"{block}gate.weight is not expected", together | {block + "gate.weight": weights[block + "gate.weight"]})
    # What is trained otherwise is not called by a name that means something else.
    inputs = Path(__file__).parent.parent.parent / "inputs"
    out = folder / "sigmoid"
    run(*launcher, 1, fourfold, "train", inputs / "t0_moe.yaml", f"run.folder={out}", "run.steps=1", "model.moe.score=sigmoid",
        "data.valid_samples=0")
    said = run(fourfold, "convert", "weights", out, "--output", folder / "none", code=2)
    check(re.search("no Hugging Face family that is built has model.moe.score sigmoid", said), said)
    check(not (folder / "none").exists(), "a refused export left something")


def show_streaming(folder):
    """Import and export in a part of the memory that the model takes, whose largest tensor alone is more."""
    config, shapes, _ = mixtral_model()
    d, f, experts = 256, 3072, 24
    config |= {"hidden_size": d, "intermediate_size": f, "num_local_experts": experts, "num_hidden_layers": 1, "vocab_size": 1000}
    p = "model.layers.0."
    weights = {"model.embed_tokens.weight": (1000, d), "lm_head.weight": (1000, d), "model.norm.weight": (d,),
               p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,), p + "mlp.gate.weight": (experts, d),
               p + "mlp.experts.gate_up_proj": (experts, 2 * f, d), p + "mlp.experts.down_proj": (experts, d, f)}
    for part, count in (("q", 4), ("k", 2), ("v", 2)):
        weights[f"{p}self_attn.{part}_proj.weight"] = (count * 12, d)
    weights[p + "self_attn.o_proj.weight"] = (d, 48)
    values = {name: np.random.default_rng(1).standard_normal(shape, np.float32) for name, shape in weights.items()}
    source = write_folder(folder / "large", config, values)
    size = (source / "model.safetensors").stat().st_size
    check(4 * values[p + "mlp.experts.gate_up_proj"].size > MEMORY and size > 1.5 * MEMORY, "a model that is not large")
    run(fourfold, "convert", "weights", source, "--output", folder / "large-run", memory=MEMORY)
    run(fourfold, "convert", "weights", folder / "large-run", "--output", folder / "large-out", "--experts", "stacked", memory=MEMORY)
    check(read_safetensors(folder / "large-out") == read_safetensors(source), "other bytes of a large model")


def main(folder):
    shown = show("mixtral", folder, mixtral_model(), "F32", GRIDS if full else GRIDS[:2])
    source, config, weights, forward, deck, checkpoint, prompts, expected = shown
    show_exchanges(folder, config, weights, deck, prompts, expected)
    show_training("mixtral", folder, source, config, weights, forward, deck, checkpoint)
    show_refusals(folder, source, config, weights)
    show("qwen2_moe", folder, qwen2_moe_model(False, False, 2, []), "F32", GRIDS if full else GRIDS[1:3])
    if full:
        show_streaming(folder)
        show("qwen2_moe-tied", folder, qwen2_moe_model(True, True, 1, []), "BF16", GRIDS)
        show("mixtral-tied", folder, mixtral_model(True), "F16", GRIDS[:1])
    show_t0(folder)

    # Text in and out, of experts on two stages.
    config, shapes, forward = qwen2_moe_model(True, True, 1, [])
    weights = random_weights(shapes, "F32")
    config["eos_token_id"] = 100
    source = write_folder(folder / "speaks", config, weights)
    write_tokenizer(source)
    import_one(source, folder / "speaks-run")
    check_generation(folder, source, folder / "speaks-run", config, weights, forward, (ONE, GRIDS[1]))


with tempfile.TemporaryDirectory() as name:
    main(Path(name))
end()
