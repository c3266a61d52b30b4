#!/usr/bin/env python3
"""The step of gpt2_124m.yaml in PyTorch on the CPU: python3 gpt2_torch.py [--threads N] [--steps N] [--precision P]

P: fp32; autocast, products in bf16 with weights in fp32; bf16, weights and all (no fp32 masters: fewer bytes than ours).
Debian's python3-torch is enough. Prints tokens/s of each step but the first two, one a line.
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--precision", choices=("fp32", "autocast", "bf16"), default="fp32")
options = parser.parse_args()
torch.set_num_threads(options.threads)

LAYERS, WIDTH, HEADS, VOCAB, TOKENS, BATCH = 12, 768, 12, 50304, 256, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x):
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(WIDTH, 2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / shape[-1] ** 0.5
            masked = scores.masked_fill(torch.ones(TOKENS, TOKENS).tril() == 0, float("-inf"))
            y = masked.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))

    def forward(self, x):
        x = x + self.attend(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.ffn_norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.blocks(self.token(ids) + self.position.weight)
        return self.norm(x) @ self.token.weight.t()


torch.manual_seed(0)
model = Model()
nn.init.normal_(model.token.weight, std=0.02)
nn.init.normal_(model.position.weight, std=0.02)
if options.precision == "bf16":
    model = model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
ids, targets = (torch.randint(0, VOCAB, (BATCH, TOKENS)) for _ in range(2))
for step in range(options.steps):
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "autocast"):
        logits = model(ids)
        loss = F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step >= 2:
        print(f"{BATCH * TOKENS / (time.perf_counter() - start):.1f}", flush=True)
