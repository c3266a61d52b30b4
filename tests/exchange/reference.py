"""GPT-2, Llama, Qwen2, Mixtral and Qwen2-MoE as their papers define them (numpy, fp64), and safetensors files: no code of the
program is used here."""
import json
import struct

import numpy as np

random = np.random.default_rng(20261201)


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


def gated(w, p, gate, up, down, h):
    g = h @ w[p + gate + ".weight"].T
    return (g / (1 + np.exp(-g)) * (h @ w[p + up + ".weight"].T)) @ w[p + down + ".weight"].T


def has_experts(c, layer):
    if c["model_type"] == "mixtral":
        return True
    return c["model_type"] == "qwen2_moe" and layer not in c["mlp_only_layers"] and (layer + 1) % c["decoder_sparse_step"] == 0


def mixture(w, c, p, h):
    """Each token's k experts of the largest softmax scores, of equal ones the lower, times these scores (over their sum)."""
    mixtral = c["model_type"] == "mixtral"
    block = p + ("block_sparse_moe." if mixtral else "mlp.")
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    scores = softmax(h @ w[block + "gate.weight"].T)
    out = np.zeros_like(h)
    for t in range(len(h)):
        chosen = np.argsort(-scores[t], kind="stable")[:c["num_experts_per_tok"]]
        shares = scores[t, chosen]
        if mixtral or c["norm_topk_prob"]:
            shares = shares / shares.sum()
        for e, share in zip(chosen, shares):
            out[t] += share * gated(w, f"{block}experts.{e}.", *names, h[t])
    if not mixtral:
        turn = 1 / (1 + np.exp(-(h @ w[block + "shared_expert_gate.weight"].T)))
        out += turn * gated(w, block + "shared_expert.", *names, h)
    return out


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
        x = x + (mixture(w, c, p, h) if has_experts(c, i) else gated(w, p + "mlp.", "gate_proj", "up_proj", "down_proj", h))
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


def mixtral_model(tied=False):
    d, f, experts = 32, 20, 6
    config, shapes, forward = llama_model(False, tied)
    config |= {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "intermediate_size": f, "num_local_experts": experts,
               "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02, "output_router_logits": True,
               "router_jitter_noise": 0.0, "sliding_window": None}
    shapes = {name: shape for name, shape in shapes.items() if ".mlp." not in name}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}.block_sparse_moe."
        shapes[p + "gate.weight"] = (experts, d)
        for e in range(experts):
            shapes |= {f"{p}experts.{e}.w1.weight": (f, d), f"{p}experts.{e}.w2.weight": (d, f), f"{p}experts.{e}.w3.weight": (f, d)}
    return config, shapes, forward


def qwen2_moe_model(tied, normed, step, dense):
    """`dense`: mlp_only_layers."""
    d, f, shared, experts = 32, 12, 28, 5
    config, shapes, forward = llama_model(True, tied)
    config |= {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "num_experts": experts, "num_experts_per_tok": 3,
               "moe_intermediate_size": f, "shared_expert_intermediate_size": shared, "norm_topk_prob": normed,
               "decoder_sparse_step": step, "mlp_only_layers": dense}
    for i in range(config["num_hidden_layers"]):
        if not has_experts(config, i):
            continue
        p = f"model.layers.{i}.mlp."
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(p)}
        shapes |= {p + "gate.weight": (experts, d), p + "shared_expert_gate.weight": (1, d)}
        for part, width in [(f"experts.{e}", f) for e in range(experts)] + [("shared_expert", shared)]:
            shapes |= {f"{p}{part}.gate_proj.weight": (width, d), f"{p}{part}.up_proj.weight": (width, d),
                       f"{p}{part}.down_proj.weight": (d, width)}
    return config, shapes, forward


def stacked(weights, config):
    """The same with all experts of a layer together: gate and up as experts x 2 f x d (gate first), down experts x d x f."""
    mixtral = config["model_type"] == "mixtral"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    result = {name: values for name, values in weights.items() if ".experts." not in name and ".block_sparse_moe." not in name}
    for i in range(config["num_hidden_layers"]):
        if not has_experts(config, i):
            continue
        p, to = f"model.layers.{i}." + ("block_sparse_moe." if mixtral else "mlp."), f"model.layers.{i}.mlp."
        each = range(config["num_local_experts" if mixtral else "num_experts"])
        result[to + "gate.weight"] = weights[p + "gate.weight"]
        result[to + "experts.gate_up_proj"] = np.stack(
            [np.concatenate([weights[f"{p}experts.{e}.{part}.weight"] for part in (gate, up)]) for e in each])
        result[to + "experts.down_proj"] = np.stack([weights[f"{p}experts.{e}.{down}.weight"] for e in each])
    return result


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
