"""Converts the full state of a training run between live objects and named tensors.

    weights.<name>  buffers.<name>  optimizer.<name>.<slot>  rng.<generator>  position.<counter>

Names are sorted wherever a state is written or digested.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Set

import numpy as np
import torch
from torch import nn

from tallystick.errors import MalformedError
from tallystick.frameworks.torch.tensors import from_tensor
from tallystick.tensors.tensor import Tensor

CUDA_GENERATORS = "rng.torch_cuda_"


def live_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor that a step reads and writes, by its name in the state; tied weights appear once."""
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    tensors = {f"weights.{name}": value for name, value in named.items()}
    tensors |= {f"buffers.{name}": value for name, value in model.named_buffers()}
    return tensors | dict(_optimizer_slots(named, optimizer))


def _optimizer_slots(
    named: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in named.items():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield f"optimizer.{name}.{slot}", value
            elif isinstance(value, int | float):
                yield f"optimizer.{name}.{slot}", torch.tensor(float(value), dtype=torch.float64)


def generator_state(device: str, foreign: bool = False) -> dict[str, Tensor]:
    """The states of PyTorch's generators; with `foreign`, also of Python's and NumPy's, for a custom training loop."""
    states = {"rng.torch_cpu": Tensor.of(torch.get_rng_state().numpy())}
    if device == "cuda":
        states |= {
            f"{CUDA_GENERATORS}{index}": Tensor.of(state.numpy())
            for index, state in enumerate(torch.cuda.get_rng_state_all())
        }
    if foreign:
        states["rng.python"] = Tensor.of(np.asarray(random.getstate()[1], np.uint32))
        states["rng.numpy"] = Tensor.of(_numpy_generator())
    return states


def _numpy_generator() -> np.ndarray:
    _, words, position, *_ = np.random.get_state(legacy=True)
    return np.append(np.asarray(words, np.uint32), np.uint32(position))


def restore_generators(state: Mapping[str, Tensor], device: str) -> None:
    """Restore the generators of PyTorch; raises `MalformedError` if the bytes are not a generator's state."""
    try:
        torch.set_rng_state(from_tensor(state["rng.torch_cpu"]))
        if device == "cuda":
            names = sorted(name for name in state if name.startswith(CUDA_GENERATORS))
            torch.cuda.set_rng_state_all([from_tensor(state[name]) for name in names])
    except (RuntimeError, TypeError) as error:
        raise MalformedError(f"anchor: rng state refused: {str(error).splitlines()[0]}") from None


def check_names(expected: Set[str], found: Set[str]) -> None:
    """Raise `MalformedError` unless exactly the expected tensors are present.

    Generators of CUDA devices are ignored: another machine has another number of them.
    """
    differing = {name for name in expected ^ found if not name.startswith(CUDA_GENERATORS)}
    missing, unknown = sorted(differing & expected), sorted(differing & found)
    if missing or unknown:
        raise MalformedError(f"anchor: lacks {missing[:3] or 'nothing'} and holds unknown {unknown[:3] or 'nothing'}")


@torch.no_grad()
def restore_tensors(live: Mapping[str, torch.Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy `state` into `live`; raises `MalformedError` if shapes or dtypes differ."""
    for name, target in live.items():
        source = from_tensor(state[name])
        if source.shape != target.shape or source.dtype != target.dtype:
            found, wanted = f"{source.dtype} {tuple(source.shape)}", f"{target.dtype} {tuple(target.shape)}"
            raise MalformedError(f"anchor: {name} is {found}, not {wanted}")
        target.copy_(source)
