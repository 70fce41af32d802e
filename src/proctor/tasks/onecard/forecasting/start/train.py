"""Starting solution: DLinear (Zeng et al., 2023), written afresh. One linear map for the trend, one for the rest.

python train.py      trains for EPOCHS epochs and writes checkpoints/model.pt
"""

import os
import time
from pathlib import Path

import prepare
import torch
from torch import nn
from torch.nn import functional as F

EPOCHS = 5
BATCH_SIZE = 128
LEARNING_RATE = 1e-3
KERNEL = 25  # rows of the moving average that makes the trend; odd
CHECKPOINT = "checkpoints/model.pt"


class DLinear(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel
        self.trend = nn.Linear(prepare.LOOKBACK, prepare.HORIZON)
        self.rest = nn.Linear(prepare.LOOKBACK, prepare.HORIZON)

    def forward(self, x):  # x (B, LOOKBACK, 7)
        x = x.transpose(1, 2)  # (B, 7, LOOKBACK)
        side = (self.kernel - 1) // 2
        trend = F.avg_pool1d(F.pad(x, (side, side), mode="replicate"), self.kernel, stride=1)  # (B, 7, LOOKBACK)
        y = self.trend(trend) + self.rest(x - trend)  # (B, 7, HORIZON)
        return y.transpose(1, 2)  # (B, HORIZON, 7)


def build_model(config):
    return DLinear(config["kernel"])


def main():
    torch.manual_seed(int(os.environ.get("PROCTOR_SEED", "0")))
    device = prepare.device()
    series = torch.as_tensor(prepare.rows("train"), device=device)
    x, y = prepare.windows(series)  # views (n, LOOKBACK, 7), (n, HORIZON, 7)
    config = {"kernel": KERNEL}
    model = build_model(config).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    started = time.time()
    for epoch in range(EPOCHS):
        model.train()
        total, steps = 0.0, 0
        for rows in torch.randperm(len(x), device=device).split(BATCH_SIZE):
            loss = F.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        val = prepare.mean_squared_error(model, "val")
        print(
            f"epoch {epoch + 1}/{EPOCHS}: train {total / steps:.4f}, val {val:.4f}, {time.time() - started:.1f} s",
            flush=True,
        )
    prepare.save_checkpoint(CHECKPOINT, Path(__file__).name, config, model)


if __name__ == "__main__":
    main()
