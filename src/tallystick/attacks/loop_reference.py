"""The reference run of a custom training loop: a language model of two layers, with step graph and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tallystick.recorders.own_loop import record_training
from tallystick.store.origin import SINGLE
from tallystick.tensors.safetensors import write_state
from tallystick.tensors.tensor import Tensor

TOKENS, WIDTH, ROWS, SEQUENCE = 32, 16, 8, 12
STEPS, STRIDE = 24, 6
CLIP = 0.01
CLASS_WEIGHTS = tuple(0.5 + token / TOKENS for token in range(TOKENS))


def train_loop(
    out: Path,
    data_seed: int = 5,
    *,
    scheduled: bool = False,
    clips: float | None = None,
    autocast: bool = False,
    undecayed_from: int = STEPS,
    initial: Path | None = None,
) -> None:
    """Record the loop into `out`.

    Another `data_seed` gives other batches. The other arguments turn on what real loops do: a schedule, clipping,
    autocast, and weight decay that ends at step `undecayed_from`. The first weights are written to `initial`, which the
    spec then states.
    """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(TOKENS, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 if scheduled else 1.0)
    data = batches(data_seed)
    if initial is not None:
        initial.mkdir(parents=True)
        weights = {name: Tensor.of(value.numpy()) for name, value in model.state_dict().items()}
        write_state(initial / SINGLE, weights)
    captured = {"loss": loss_of, "example": data[0], "initial": initial}
    recording = record_training(out, model, optimizer, anchor_stride=STRIDE, **captured)
    with recording as recorder:
        for step, batch in enumerate(data):
            if step == undecayed_from:
                optimizer.param_groups[0]["weight_decay"] = 0.0
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(model, batch)
            loss.backward()
            if clips is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clips)
            optimizer.step()
            schedule.step()
            recorder.step(loss, batch)


def loss_of(model: Any, batch: Any) -> Any:
    """Cross entropy of the next token, with constant class weights."""
    import torch

    inputs, targets = batch
    weights = torch.tensor(CLASS_WEIGHTS)
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), weight=weights)


def batches(seed: int) -> list[Any]:
    """Batches of random tokens I64[ROWS, SEQUENCE]; each target is a fixed function of its token."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(0, TOKENS, (ROWS, SEQUENCE), generator=generator) for _ in range(STEPS)]
    return [(tokens, (3 * tokens + 1) % TOKENS) for tokens in drawn]
