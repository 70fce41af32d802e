"""Reference solution: members of several kinds, blended by what they do on the development rows.

1. Each kind is trained on the training rows alone, and non-negative blend weights are fitted on the development rows.
2. Each kind that got a weight is trained again, up to SEEDS times, on training and development rows joined.

    python train.py      writes checkpoints/model.pt
"""

import copy
import math
import os
import time
from pathlib import Path

import prepare
import torch
from torch import nn
from torch.nn import functional as F

TIME_LIMIT_S = 540.0  # for everything; a repeat that would not fit is left out
KINDS = ("centred linear", "mlp")  # which of RECIPES
SEEDS = 3
EPOCHS = 10
BATCH_SIZE = 128
EMA = 0.98  # memory of the averaged weights, in steps
CHECKPOINT = "checkpoints/model.pt"

RECIPES = {
    # The level of a window is taken off and put back: what helps where the level drifts, as in ETTh1.
    "centred linear": {"centre": True, "loss": F.l1_loss, "lr": 5e-3, "weight_decay": 0.5},
    "mlp": {"centre": True, "hidden": 128, "loss": F.l1_loss, "lr": 1e-3, "weight_decay": 0.3},
    "linear": {"centre": False, "loss": F.l1_loss, "lr": 5e-3, "weight_decay": 0.5},
    # All channels to all channels: what helps where some channels follow others.
    "across": {"centre": False, "rank": 64, "loss": F.mse_loss, "lr": 1e-3, "weight_decay": 1.0},
}


class Member(nn.Module):
    """A linear map over time that all channels share; beside it an MLP over time, or a low-rank map across channels."""

    def __init__(self, centre, hidden=0, rank=0):
        super().__init__()
        self.centre = centre
        self.time = nn.Linear(prepare.LOOKBACK, prepare.HORIZON)
        self.mlp = self.across = None
        if hidden:
            self.mlp = nn.Sequential(
                nn.Linear(prepare.LOOKBACK, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, prepare.HORIZON)
            )
        if rank:
            inner = nn.Linear(prepare.CHANNELS * prepare.LOOKBACK, rank)
            outer = nn.Linear(rank, prepare.CHANNELS * prepare.HORIZON)
            nn.init.zeros_(outer.weight)
            self.across = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), inner, nn.Dropout(0.3), outer)

    def forward(self, x):  # x (B, LOOKBACK, 7)
        x = x.transpose(1, 2)  # (B, 7, LOOKBACK)
        level = x.mean(-1, keepdim=True) if self.centre else 0.0
        x = x - level
        y = self.time(x) + level  # (B, 7, HORIZON)
        if self.mlp is not None:
            y = y + self.mlp(x)
        if self.across is not None:
            y = y + self.across(x).view(-1, prepare.CHANNELS, prepare.HORIZON)
        return y.transpose(1, 2)  # (B, HORIZON, 7)


class Blend(nn.Module):
    """The weighted mean of its members."""

    def __init__(self, members, weights):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.weights = weights

    def forward(self, x):
        return sum(weight * member(x) for weight, member in zip(self.weights, self.members, strict=True))


def build_member(kind):
    recipe = RECIPES[kind]
    return Member(recipe["centre"], recipe.get("hidden", 0), recipe.get("rank", 0))


def build_model(config):
    return Blend([build_member(kind) for kind in config["kinds"]], config["weights"])


def train_member(kind, series, seed):
    """One member, trained on all windows of `series` (rows, 7); the averaged weights, in evaluation mode."""
    torch.manual_seed(seed)
    x, y = prepare.windows(series)
    recipe = RECIPES[kind]
    member = build_member(kind).to(series.device)
    averaged = copy.deepcopy(member)
    optimizer = torch.optim.AdamW(member.parameters(), lr=recipe["lr"], weight_decay=recipe["weight_decay"])
    steps = EPOCHS * math.ceil(len(x) / BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / steps))
    member.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), device=series.device).split(BATCH_SIZE):
            loss = recipe["loss"](member(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                torch._foreach_lerp_(list(averaged.parameters()), list(member.parameters()), 1 - EMA)
    return averaged.eval()


@torch.inference_mode()
def forecasts(member, x):
    return torch.cat([member(part) for part in x.split(256)])


def blend_weights(parts, target):
    """Weights >= 0 that sum to 1 and minimise the squared error of the blend of `parts`."""
    errors = torch.stack([(part - target).flatten().double() for part in parts])  # (k, n)
    gram = errors @ errors.T / errors.shape[1]
    logits = torch.zeros(len(parts), dtype=torch.double, device=gram.device, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(500):
        weights = logits.softmax(0)
        loss = weights @ gram @ weights
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return logits.softmax(0).tolist()


def main():
    started = time.time()
    seed = 1000 * int(os.environ.get("PROCTOR_SEED", "0"))
    device = prepare.device()
    train = torch.as_tensor(prepare.rows("train"), device=device)
    val = torch.as_tensor(prepare.rows("val"), device=device)
    x, y = prepare.windows(val)
    pilots = []
    for i, kind in enumerate(KINDS):
        pilots.append(forecasts(train_member(kind, train, seed + i), x))
        print(f"{kind}: val {F.mse_loss(pilots[-1], y):.4f}, {time.time() - started:.1f} s", flush=True)
    weights = blend_weights(pilots, y)
    blended = sum(w * pilot for w, pilot in zip(weights, pilots, strict=True))
    print(f"blend {[round(w, 3) for w in weights]}: val {F.mse_loss(blended, y):.4f}", flush=True)

    joined = torch.cat([train, val[prepare.LOOKBACK :]])
    kept = [(kind, weight) for kind, weight in zip(KINDS, weights, strict=True) if weight > 0.02]
    round_s = (time.time() - started) * len(joined) / len(train)
    trained = []  # (kind, weight, member)
    for repeat in range(SEEDS):
        if repeat and time.time() - started + round_s > TIME_LIMIT_S:
            break
        for i, (kind, weight) in enumerate(kept):
            trained.append((kind, weight, train_member(kind, joined, seed + 100 * (repeat + 1) + i)))
    total = sum(weight for _, weight, _ in trained)
    config = {"kinds": [kind for kind, _, _ in trained], "weights": [weight / total for _, weight, _ in trained]}
    model = Blend([member for _, _, member in trained], config["weights"])
    prepare.save_checkpoint(CHECKPOINT, Path(__file__).name, config, model)
    print(f"{len(trained)} members, {time.time() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
