"""Reference solution: an ensemble of modern GPTs, each with a built-in copy expert, on all the text there is.

python train.py      writes checkpoints/model.pt
"""

import math
import os
import time
from pathlib import Path

import prepare
import torch
from torch import nn
from torch.nn import functional as F

TIME_LIMIT_S = 420.0  # for everything; a member that would not fit is left out, or its schedule shrinks
SCHEDULES = (500, 1000, 2000)  # steps of a member; where there is a choice, the development text decides
MEMBERS = 8
LAYERS = 6
HEADS = 6
WIDTH = 384
DROPOUT = 0.3
BLOCK_SIZE = 1024
BATCH_SIZE = 32
MUON_RATE = 0.02
ADAM_RATE = 3e-3
WARMUP = 0.02  # share of the schedule
COOLDOWN = 0.6  # share of the schedule
WEIGHT_DECAY = 0.1
EMA = 0.98  # memory of the averaged weights, in steps
LONGEST_MATCH = 16  # characters that the copy expert compares
CHECKPOINT = "checkpoints/model.pt"


def rotate(x, angles):  # x (B, heads, T, d), angles (T, d / 2)
    """Rotary position embedding."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x, angles):  # x (B, T, width)
        b, t, w = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (w,))).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        q, k = (rotate(F.rms_norm(z, z.shape[-1:]), angles) for z in (q, k))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + F.dropout(self.proj(a), self.dropout, self.training)
        m = self.down(F.relu(self.up(F.rms_norm(x, (w,)))).square())
        return x + F.dropout(m, self.dropout, self.training)


class Copy(nn.Module):
    """What followed earlier in the block where the last characters were the same; longer matches count for more."""

    def __init__(self, longest):
        super().__init__()
        self.longest = longest
        self.score = nn.Parameter(torch.tensor([1.5, 0.0]))  # per matching character, and per root of their number

    def forward(self, idx, vocabulary):  # idx (B, T)
        t = idx.shape[1]
        same = idx[:, :, None] == idx[:, None, :]  # (B, T, T): characters i and j agree
        run, length = same, same.to(torch.uint8)
        for _ in range(self.longest - 1):
            run = same & F.pad(run[:, :-1, :-1], (1, 0, 1, 0))
            length = length + run
        past = torch.ones(t, t, dtype=torch.bool, device=idx.device).tril(-1)  # j < i: what followed j is known
        matched = length.float()  # a table looked up by length would have a very slow gradient on a GPU
        score = (self.score[0] * matched + self.score[1] * matched.sqrt()).masked_fill(~past, -1e4)
        following = F.one_hot(F.pad(idx[:, 1:], (0, 1)), vocabulary).to(score.dtype)
        best = (length * past).amax(-1)  # (B, T): the longest match
        weights = score.softmax(-1) * past  # a position without a past must not look around instead
        return weights @ following, best  # probabilities (B, T, vocabulary)


class GPT(nn.Module):
    def __init__(self, vocabulary, layers, heads, width, dropout, longest):
        super().__init__()
        self.dropout = dropout
        self.token = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.copy = Copy(longest)
        self.gate = nn.Linear(width, 1)
        self.gate_of_match = nn.Embedding(longest + 1, 1)
        for matrix in (self.head.weight, self.gate.weight, self.gate_of_match.weight):
            nn.init.zeros_(matrix)
        nn.init.constant_(self.gate.bias, -3.0)
        half = width // heads // 2
        self.register_buffer("rates", 1 / 1000 ** (torch.arange(half) / half), persistent=False)

    def forward(self, idx):  # idx int64 (B, T)
        angles = torch.arange(idx.shape[1], device=idx.device)[:, None] * self.rates  # (T, d / 2)
        x = F.dropout(self.token(idx), self.dropout, self.training)  # (B, T, width)
        for layer in self.layers:
            x = layer(x, angles)
        x = F.rms_norm(x, x.shape[-1:])
        own = self.head(x).float().log_softmax(-1)  # (B, T, vocabulary)
        copied, match = self.copy(idx, own.shape[-1])
        gate = (self.gate(x) + self.gate_of_match(match.long())).float()  # (B, T, 1)
        copied = F.logsigmoid(gate) + copied.float().clamp_min(1e-9).log()
        return torch.logaddexp(F.logsigmoid(-gate) + own, copied)  # log-probabilities, which are logits as well


class Ensemble(nn.Module):
    """The mean of the members' probabilities."""

    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, idx):
        return torch.stack([member(idx) for member in self.members]).logsumexp(0)


def build_model(config):
    return Ensemble(GPT(**config["gpt"]) for _ in range(config["members"]))


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal (Jordan et al., 2024), for the matrices of the layers."""

    def __init__(self, parameters, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                held = self.state[p].setdefault("momentum", torch.zeros_like(p))
                held.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(held, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g, steps=5):
    """A matrix with the singular vectors of `g` and singular values near 1, by Newton-Schulz iteration."""
    x = g.bfloat16() if g.is_cuda else g
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        s = x @ x.T
        x = 3.4445 * x + (2.0315 * s @ s - 4.7750 * s) @ x
    return (x.T if tall else x).to(g.dtype)


def rate(progress):
    """The learning rate's factor at `progress` in [0, 1]: up, level, and linearly down to 0."""
    return min(1.0, (progress + 1e-3) / WARMUP, max(0.0, 1 - progress) / COOLDOWN)


def train_member(config, text, steps, seed, budget_s, device):
    """One GPT with averaged weights, trained on random blocks of `text` until `steps` or `budget_s` are used up."""
    torch.manual_seed(seed)
    model = GPT(**config).to(device)
    averaged = GPT(**config).to(device)
    averaged.load_state_dict(model.state_dict())
    matrices = [p for p in model.layers.parameters() if p.dim() == 2]
    others = [p for name, p in model.named_parameters() if not name.startswith("layers.")]
    optimizers = [
        Muon(matrices, MUON_RATE, weight_decay=WEIGHT_DECAY),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    reach = torch.arange(BLOCK_SIZE + 1, device=device)
    started, step, progress = time.time(), 0, 0.0
    while progress < 1.0:
        starts = torch.randint(len(text) - BLOCK_SIZE, (BATCH_SIZE, 1), device=device)
        block = text[starts + reach]  # (B, BLOCK_SIZE + 1)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(block[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), block[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        for optimizer, base in zip(optimizers, (MUON_RATE, ADAM_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = base * rate(progress)
            optimizer.step()
        with torch.no_grad():
            memory = min(EMA, step / (step + 10))
            torch._foreach_lerp_(list(averaged.parameters()), list(model.parameters()), 1 - memory)
        step += 1
        progress = max(step / steps, (time.time() - started) / budget_s)
        if step % 100 == 0:
            print(
                f"  step {step}/{steps}: train {loss.item() / math.log(2):.4f}, {time.time() - started:.1f} s",
                flush=True,
            )
    return averaged.eval()


def main():
    started = time.time()
    seed = 1000 * int(os.environ.get("PROCTOR_SEED", "0"))
    device = prepare.device()
    train, val = prepare.tokens("train").to(device), prepare.tokens("val").to(device)
    gpt = {
        "vocabulary": len(prepare.characters()),
        "layers": LAYERS,
        "heads": HEADS,
        "width": WIDTH,
        "dropout": DROPOUT,
        "longest": LONGEST_MATCH,
    }
    both = torch.cat([train, val])
    members, steps = [], SCHEDULES[0]
    if len(SCHEDULES) > 1:
        # Pilots leave the development text out, so that their scores there mean something.
        share = TIME_LIMIT_S / 2 / sum(SCHEDULES)
        scores = {}
        for i, length in enumerate(SCHEDULES):
            pilot = train_member(gpt, train, length, seed + i, share * length, device)
            scores[length] = prepare.bits_per_byte(pilot, "val", BLOCK_SIZE)
            print(f"pilot, {length} steps: val {scores[length]:.4f}, {time.time() - started:.1f} s", flush=True)
            if scores[length] == min(scores.values()):
                members, steps = [pilot], length
    slowest = 0.0
    while len(members) < MEMBERS:
        left = TIME_LIMIT_S - (time.time() - started)
        if members and left < slowest:
            break
        begun = time.time()
        members.append(train_member(gpt, both, steps, seed + 100 + len(members), left, device))
        slowest = max(slowest, time.time() - begun)
        config = {"gpt": gpt, "members": len(members), "block_size": BLOCK_SIZE}
        prepare.save_checkpoint(CHECKPOINT, Path(__file__).name, config, Ensemble(members))
        print(f"{len(members)} members, {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
