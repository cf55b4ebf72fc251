"""A search for honest results outside their bounds: settings of PyTorch, numbers and shapes that tests do not have."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import torch

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.engine import TorchEngine
from tallystick.programs.operators.definition import operator
from tallystick.programs.operators.precision import PLAIN, STEPWISE
from tests.programs.operators.degenerate_calls import FORWARD, backward_of, degenerate_calls
from tests.programs.operators.examples import Bf16, Call, collected
from tests.programs.operators.honest import PROFILES, SEARCHED, as_dtype, redrawn, shares
from tests.programs.operators.real_layers import real_layers

SPECIAL: Final = (0.997, 0.1, 1 / 3, 0.999, 0.01)
"""Numbers between 0 and 1 that no binary format has, and whose distance from 1 is small beside them."""


CONTIGUOUS: Final = "flash_attention_for_cpu"
"""Kernels that PyTorch calls for heads that are contiguous alone: given others, they read other numbers."""


@dataclass(frozen=True)
class Setting:
    """How one process runs PyTorch."""

    environment: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    channels_last: bool = False
    onednn: bool = True


SETTINGS: Final[dict[str, Setting]] = {
    "as it is": Setting(),
    "2 threads": Setting(threads=2),
    "channels-last": Setting(channels_last=True),
    "without oneDNN": Setting(onednn=False),
    "without oneDNN, channels-last, 2 threads": Setting(threads=2, channels_last=True, onednn=False),
    **{f"ATen {level}": Setting({"ATEN_CPU_CAPABILITY": level}) for level in ("default", "avx2", "avx512")},
    **{
        f"oneDNN {level}": Setting({"ONEDNN_MAX_CPU_ISA": level}, channels_last=index % 2 == 1)
        for index, level in enumerate(("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_BF16"))
    },
    "ATen default, oneDNN SSE41, MKL compatible": Setting(
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}
    ),
}


@dataclass
class Searched:
    """Of each operator and dtype the largest share of its bound, and the call; how many calls ran."""

    shares: dict[str, tuple[float, str]] = field(default_factory=dict)
    calls: int = 0

    def add(self, name: str, share: float, shown: str) -> None:
        """Keep the larger one."""
        if share > self.shares.get(name, (-1.0, ""))[0]:
            self.shares[name] = share, shown

    def to_json(self) -> dict[str, Any]:
        """For the process that asked."""
        return {"shares": self.shares, "calls": self.calls}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Searched:
        """As `to_json` wrote it."""
        return cls({name: (share, shown) for name, (share, shown) in value["shares"].items()}, value["calls"])


class Layout(TorchEngine):
    """PyTorch with images in channels-last layout."""

    def load(self, tensor: Tensor) -> torch.Tensor:
        """As `TorchEngine.load`."""
        loaded = super().load(tensor)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return loaded.contiguous(memory_format=formats[loaded.dim()]) if loaded.dim() in formats else loaded


def search(setting: Setting, draws: int, only: str = "") -> Searched:
    """All examples and real shapes under one setting, in this process, which has its environment already."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(setting.threads)
    torch.backends.mkldnn.enabled = setting.onednn  # type: ignore[assignment]
    found = Searched()
    for drawn, dtype in calls(draws, only):
        engine = Layout() if setting.channels_last and CONTIGUOUS not in drawn.operator else TorchEngine()
        results = measure(found, drawn, dtype, engine)
        if drawn.operator == FORWARD and len(results) == 2:
            measure(found, backward_of(drawn, *map(operand_of, results)), dtype, engine)
    return found


def measure(found: Searched, drawn: Call, dtype: str, engine: TorchEngine) -> list[Tensor]:
    """Add the shares of one call; gives its results, none where the engine does not run it."""
    try:
        with np.errstate(all="ignore"):
            used = shares(drawn, engine, precision=PLAIN if dtype in {"F32", "F64"} else STEPWISE)
    except (UnavailableError, MalformedError):
        return []
    found.calls += 1
    for _, _, share in used:
        found.add(f"{drawn.operator} {dtype}", float(share.max(initial=0.0)), str(drawn))
    return [result for _, result, _ in used]


def operand_of(result: Tensor) -> Any:
    """A result as an operand of the next call."""
    return Bf16(result.values()) if result.dtype == "BF16" else np.array(result.array())


def calls(draws: int, only: str) -> Iterator[tuple[Call, str]]:
    """Examples with operands and numbers drawn again, degenerate calls, and layers of real models."""
    examples = collected("EXAMPLES")
    for name in sorted(name for name in examples if name.startswith("aten.") and only in name):
        rng = np.random.default_rng([11, len(name)])
        for example in examples[name]:
            for count in range(draws):
                profiles = ("normal",) if count % 2 else tuple(rng.choice(list(PROFILES), 3))
                for dtype in SEARCHED:
                    yield renumbered(redrawn(example, profiles, dtype, int(rng.integers(1 << 30))), rng), dtype
    for layer in chain(degenerate_calls(), real_layers()):
        if only in layer.operator:
            for dtype in SEARCHED:
                yield as_dtype(layer, dtype), dtype


def renumbered(drawn: Call, rng: np.random.Generator) -> Call:
    """`drawn` with every real number among its attributes drawn again, where one within (0, 1) stays there."""
    attributes = {p.name for p in operator(drawn.operator).parameters if p.kind.rstrip("?") in {"float", "Scalar"}}
    return Call(
        drawn.operator,
        {name: _renumbered(value, rng) if name in attributes else value for name, value in drawn.arguments.items()},
    )


def _renumbered(value: Any, rng: np.random.Generator) -> Any:
    if not isinstance(value, float) or not np.isfinite(value) or value == 0 or rng.random() < 0.25:
        return value
    if 0 < value < 1:
        return float(rng.choice(SPECIAL)) if value > 1e-3 else value * float(rng.uniform(0.5, 2))
    return value * float(1 + rng.uniform(-0.01, 0.01))


def machine() -> str:
    """The kind of processor, without a name."""
    return f"{platform.machine()} server CPU, {torch.backends.cpu.get_cpu_capability()}, PyTorch {torch.__version__}"
