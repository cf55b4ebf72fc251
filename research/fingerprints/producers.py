"""Who computes hidden states in the study: the same model on other kernels, in other batches, one token at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from tallystick.tally.calibration.stacks import STACKS, Stack

Way = Literal["prefill", "decode", "batched", "jax", "iree"]
"""One pass over all tokens; a cache and one token at a time, alone or in a batch; or the captured graph of one pass."""
DTYPES: Final = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Producer:
    """One way to compute the hidden states of an answer, with another model's weights if it is a `cheat`.

    A `verifier` runs one pass with the promised weights. A `held_out` producer sets no limit; limits are tried on it.
    """

    stack: str
    way: Way
    cheat: Literal["", "int8", "int4"] = ""
    is_verifier: bool = False
    held_out: bool = False
    dtypes: tuple[str, ...] = DTYPES

    @property
    def name(self) -> str:
        """Such as `base, batched`."""
        return ", ".join(filter(None, (self.stack, self.way, self.cheat)))


PRODUCERS: Final = (
    Producer("base", "prefill", is_verifier=True),
    Producer("base", "decode"),
    Producer("base", "batched"),
    Producer("2 threads", "prefill"),
    Producer("AVX2 vector code", "batched"),
    Producer("portable vector code", "prefill"),
    Producer("MKL compatible", "prefill", is_verifier=True),
    Producer("MKL compatible", "batched"),
    Producer("oneDNN off", "prefill"),
    Producer("oneDNN off", "batched"),
    Producer("fused attention", "prefill", is_verifier=True),
    Producer("fused attention", "batched"),
    Producer("base", "jax", is_verifier=True, dtypes=("F32", "BF16")),
    Producer("all portable", "prefill", is_verifier=True, held_out=True),
    Producer("all portable", "batched", held_out=True),
    Producer("base", "iree", held_out=True, dtypes=("F32",)),
    Producer("base", "batched", "int8"),
    Producer("base", "batched", "int4"),
)


def stacks_of(producers: tuple[Producer, ...]) -> tuple[Stack, ...]:
    """The stacks that the producers need, each once."""
    needed = {each.stack for each in producers}
    return tuple(stack for stack in STACKS if stack.name in needed)


def job_of(producer: Producer) -> dict[str, Any]:
    """A producer as a part of a job."""
    return {"name": producer.name, "way": producer.way, "cheat": producer.cheat, "dtypes": list(producer.dtypes)}
