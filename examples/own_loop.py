"""Record a custom training loop in PyTorch: only the three marked lines are new."""

import sys

import torch
from torch import nn

import tallystick  # 1


def main(out: str) -> None:
    """Fit a small network to a noisy sine, recorded into `out`."""
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 512)[:, None]
    y = torch.sin(x) + 0.1 * torch.randn_like(x)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tallystick.record_training(out, model, optimizer, anchor_stride=20) as recorder:  # 2
        for _ in range(100):
            rows = torch.randint(0, 512, (64,))
            loss = nn.functional.mse_loss(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=(x[rows], y[rows]))  # 3


if __name__ == "__main__":
    main(sys.argv[1])
