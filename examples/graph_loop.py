"""A custom training loop that a verifier can replay without its code: run `tally audit RUN` afterwards."""

import sys

import torch
from torch import nn

import tallystick


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The loss as the loop computes it; the step is captured from it."""
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


def main(out: str) -> None:
    """Fit a small network to a noisy sine, recorded into `out` with its step as a graph."""
    torch.manual_seed(0)
    x = torch.linspace(-3, 3, 512)[:, None]
    y = torch.sin(x) + 0.1 * torch.randn_like(x)
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    example = (x[:64], y[:64])
    with tallystick.record_training(out, model, optimizer, loss=loss_of, example=example) as recorder:
        for _ in range(100):
            rows = torch.randint(0, 512, (64,))
            batch = (x[rows], y[rows])
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch)


if __name__ == "__main__":
    main(sys.argv[1])
