"""Tensors and states of PyTorch as those of this project, and back; devices and dtypes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Set
from typing import Final

import numpy as np
import torch
from torch import nn

from tallystick.core.errors import MalformedError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor, TensorSpec

# Whether a device that somebody asked for is here.

DEVICES: Final = ("cpu", "cuda")


def require_device(device: str) -> None:
    """Raise `UsageError` for a device that is neither cpu nor cuda, `UnavailableError` for one that is not here."""
    if device not in DEVICES:
        raise UsageError(f"--device {device}: cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        why = "PyTorch sees no GPU" if torch.version.cuda else f"torch {torch.__version__} is built without CUDA"
        raise UnavailableError(f"--device cuda: there is no such device here ({why}); --device cpu computes without it")


# PyTorch's dtypes by the names this project gives them.

DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype; raises `UnavailableError` for one that graphs do not have, for example complex numbers."""
    name = _NAMES.get(dtype)
    if name is None:
        raise UnavailableError(f"{dtype} has no place in a graph")
    return name


def spec_of(value: torch.Tensor) -> TensorSpec:
    """Dtype and shape; raises `UnavailableError` if a size depends on data."""
    return TensorSpec(dtype_name(value.dtype), tuple(whole(side) for side in value.shape))


def whole(number: int | torch.SymInt) -> int:
    """The value of a size, also of a symbolic one; raises `UnavailableError` if it depends on data."""
    if isinstance(number, torch.SymInt):
        if not number.node.has_hint() or number.node.expr.free_symbols:
            raise UnavailableError(f"a size depends on data: {number}")
        return int(number)
    return number


# Converts tensors of PyTorch to tensors of canonical bytes, and back.


def to_tensor(value: torch.Tensor) -> Tensor:
    """A tensor of canonical bytes; shares memory with `value` if that is contiguous on the CPU."""
    held = value.detach().cpu().contiguous()
    if held.dtype == torch.bfloat16:
        return Tensor.of(held.view(torch.int16).numpy().view("<u2"), "BF16")
    return Tensor.of(held.numpy())


def from_tensor(tensor: Tensor) -> torch.Tensor:
    """A new PyTorch tensor that holds the same bytes."""
    array = np.array(tensor.array(), copy=True)
    if tensor.dtype == "BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


# Converts the full state of a training run between live objects and named tensors.
#
#     weights.<name>  buffers.<name>  optimizer.<name>.<slot>  rng.<generator>  position.<counter>
#
# Names are sorted wherever a state is written or digested.

CUDA_GENERATORS = "rng.torch_cuda_"


def live_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Every tensor that a step reads and writes, by its name in the state; tied weights appear once."""
    named: dict[str, torch.Tensor] = dict(model.named_parameters())
    tensors = {f"weights.{name}": value for name, value in named.items()}
    tensors |= {f"buffers.{name}": value for name, value in model.named_buffers()}
    for name, parameter in named.items():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, int | float):
                value = torch.tensor(float(value), dtype=torch.float64)
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{name}.{slot}"] = value
    return tensors


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
        _, words, position, *_ = np.random.get_state(legacy=True)
        states["rng.numpy"] = Tensor.of(np.append(np.asarray(words, np.uint32), np.uint32(position)))
    return states


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
