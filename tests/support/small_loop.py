"""A loop of somebody's own over a tiny network, recorded in a second."""

from __future__ import annotations

from pathlib import Path

STEPS, STRIDE, BATCH = 10, 4, 6


def record_small_loop(out: Path, seed: int = 0) -> Path:
    """Record ten steps with a state after every fourth; each batch has six examples."""
    import torch

    import tallystick

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with tallystick.record_training(out, model, optimizer, anchor_stride=STRIDE) as recorder:
        for _ in range(STEPS):
            x = torch.rand(BATCH, 1)
            loss = torch.nn.functional.mse_loss(model(x), x.sin())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss, batch=(x, x.sin()))
    return out
