"""Loops as people write them, recorded with a step graph: each is honest, and most depart from what was captured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import tallystick
from tallystick.formats.store.run import RunDirectory

STEPS = 8
Change = Callable[[int, Any, Any], None]


def loss_of(model: Any, batch: Any) -> Any:
    x, y = batch
    return (model(x) - y).square().mean()


def batches(count: int = STEPS) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    drawn = [torch.randn(8, 3, generator=generator) for _ in range(count)]
    return [(x, x.sum(1, keepdim=True)) for x in drawn]


def network() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def normalised() -> tuple[Any, Any]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = torch.nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def fit(
    out: Path,
    *,
    clips: float | None = None,
    autocast: bool = False,
    loss_outside: bool = False,
    scheduled: bool = False,
    change: Change = lambda *_: None,
    wrap: Callable[[Any], Any] = lambda model: model,
    records: Callable[[Any, Any], Any] = lambda model, wrapped: model,
    graph: bool = True,
    told: Callable[[int, Any, Any], tuple[Any, Any]] = lambda step, loss, batch: (loss, batch),
    **settings: Any,
) -> int:
    """Train for `STEPS` steps and say how many were taken; `change` happens before each, from step 0."""
    model, optimizer = network()
    wrapped, data, taken = wrap(model), batches(), 0
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if scheduled else None
    captured = {"loss": loss_of, "example": data[0]} if graph else {}
    recording = tallystick.record_training(
        out, records(model, wrapped), optimizer, anchor_stride=3, **captured, **settings
    )
    with recording as recorder:
        for step, batch in enumerate(data):
            change(step, model, optimizer)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                found = wrapped(batch[0]) if loss_outside else loss_of(wrapped, batch)
            loss = (found - batch[1]).square().mean() if loss_outside else found
            loss.backward()
            if clips is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clips)
            optimizer.step()
            if schedule is not None:
                schedule.step()  # where most people put it: before the record
            recorder.step(*told(step, loss, batch))
            taken += 1
    return taken


def decays_less(step: int, _model: Any, optimizer: Any) -> None:
    if step == 4:
        optimizer.param_groups[0]["weight_decay"] = 0.0


def forgets_faster(step: int, _model: Any, optimizer: Any) -> None:
    if step == 4:
        optimizer.param_groups[0]["betas"] = (0.5, 0.6)


def freezes(step: int, model: Any, _optimizer: Any) -> None:
    if step == 4:
        model[0].weight.requires_grad_(False)


def averages(step: int, model: Any, _optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight.mul_(0.999 if step else 1.0)


def exchanges(step: int, model: Any, _optimizer: Any) -> None:
    if step == 4:
        model[0] = torch.nn.Linear(3, 8)


def claim_of(path: Path) -> Any:
    return RunDirectory(path).claim()


def train_among_two(rank: int, folder: str) -> None:
    """One of two processes: each has batches of its own, and the first one records its inner module."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model, optimizer = network()
    wrapped, data = torch.nn.parallel.DistributedDataParallel(model), batches()[rank::2]
    captured = {"loss": loss_of, "example": data[0]}
    recording = (
        tallystick.record_training(f"{folder}/run", model, optimizer, **captured) if rank == 0 else nullcontext()
    )
    with recording as recorder:
        for batch in data:
            optimizer.zero_grad()
            loss = loss_of(wrapped, batch)
            loss.backward()
            optimizer.step()
            if recorder is not None:
                recorder.step(loss, batch)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.multiprocessing.start_processes(train_among_two, (sys.argv[1],), nprocs=2, start_method="fork")
