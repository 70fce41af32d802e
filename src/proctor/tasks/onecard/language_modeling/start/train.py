"""Starting solution: a small GPT over characters, trained for a few epochs.

python train.py      trains for EPOCHS epochs and writes checkpoints/model.pt
"""

import math
import os
import time
from pathlib import Path

import prepare
import torch
from torch import nn
from torch.nn import functional as F

LAYERS = 4
HEADS = 4
WIDTH = 256
DROPOUT = 0.1
BLOCK_SIZE = 256
BATCH_SIZE = 64
EPOCHS = 5
LEARNING_RATE = 3e-4
WARMUP_STEPS = 200
CLIP = 1.0
CHECKPOINT = "checkpoints/model.pt"


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):  # x (B, T, width)
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True)  # (B, heads, T, width / heads)
        a = self.proj(a.transpose(1, 2).reshape(b, t, w))
        x = x + F.dropout(a, self.dropout, self.training)
        m = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(m, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, vocabulary, block_size, layers, heads, width, dropout):
        super().__init__()
        self.dropout = dropout
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(block_size, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # What is added to the residual stream starts smaller, the more layers add to it.
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, idx):  # idx int64 (B, T)
        x = self.token(idx) + self.position(torch.arange(idx.shape[1], device=idx.device))  # (B, T, width)
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # logits (B, T, vocabulary)


def build_model(config):
    return GPT(**config)


def main():
    torch.manual_seed(int(os.environ.get("PROCTOR_SEED", "0")))
    device = prepare.device()
    x, y = prepare.blocks(prepare.tokens("train"), BLOCK_SIZE)  # (n, BLOCK_SIZE)
    x, y = x.to(device), y.to(device)
    config = {
        "vocabulary": len(prepare.characters()),
        "block_size": BLOCK_SIZE,
        "layers": LAYERS,
        "heads": HEADS,
        "width": WIDTH,
        "dropout": DROPOUT,
    }
    model = build_model(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    steps = EPOCHS * math.ceil(len(x) / BATCH_SIZE)
    step = 0
    started = time.time()
    for epoch in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(x), device=device).split(BATCH_SIZE):
            warm = min(1.0, (step + 1) / WARMUP_STEPS)
            cosine = 0.5 + 0.5 * math.cos(math.pi * max(0, step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS))
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * warm * cosine
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                logits = model(x[rows])
            loss = F.cross_entropy(logits.float().flatten(0, 1), y[rows].flatten(), ignore_index=-1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            step += 1
        val = prepare.bits_per_byte(model, "val", BLOCK_SIZE)
        print(
            f"epoch {epoch + 1}/{EPOCHS}: train {loss.item() / math.log(2):.4f}, val {val:.4f} bits per byte, "
            f"{time.time() - started:.1f} s",
            flush=True,
        )
    prepare.save_checkpoint(CHECKPOINT, Path(__file__).name, config, model)


if __name__ == "__main__":
    main()
