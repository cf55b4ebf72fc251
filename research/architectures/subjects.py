"""What is examined: a captured graph with everything bound, beside what its own framework computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from research.architectures import jax_models, models
from research.architectures.example import Example
from tallystick.graphs.graph import Graph, Ref
from tallystick.tensors.tensor import State, Tensor

if TYPE_CHECKING:
    import torch

CLIP_NORM: Final = 1.0
LEARNING_RATE: Final = 1e-3
FORWARD: Final = "forward"
STEP: Final = "training step"
SEED: Final = bytes(range(16))


@dataclass(frozen=True)
class Subject:
    """A graph, its inputs and constants, the native outputs by name, and the inputs that hold one example per row.

    `looped`: the native program has a loop, which the graph has unrolled.
    """

    architecture: str
    part: str
    graph: Graph
    bindings: State
    native: State
    batched: tuple[Ref, ...]
    looped: bool = False

    @property
    def framework(self) -> str:
        """Whose kernels the native outputs come from."""
        return "jax" if self.graph.dialect == "stablehlo" else "torch"


def names() -> tuple[str, ...]:
    """Everything in the table; MiniLM's first layer alone is for quick tests."""
    return (*(name for name in models.ARCHITECTURES if name != "MiniLM, first layer"), *jax_models.ARCHITECTURES)


def subject(architecture: str, part: str) -> Subject:
    """Capture one architecture; raises `UnavailableError` where it is not installed or cannot be captured."""
    if architecture in jax_models.ARCHITECTURES:
        return _jax_forward(architecture) if part == FORWARD else _jax_step(architecture)
    return _forward(architecture) if part == FORWARD else _training_step(architecture)


def _forward(architecture: str) -> Subject:
    import torch

    from tallystick.frameworks.torch.capture.model import capture

    example = models.build(architecture)
    model, given = example.model.eval(), example.inputs(0)
    captured = capture(model, (), {**given, **example.settings})
    inputs = _named("inputs", example.inputs(1))
    with torch.no_grad():
        result = model(**example.inputs(1), **example.settings)
    named = {"0": result} if isinstance(result, torch.Tensor) else dict(result.items())
    found = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    native = _named("outputs", found)
    return Subject(
        architecture, FORWARD, captured.graph, {**captured.bindings, **inputs}, native, tuple(sorted(inputs))
    )


def _training_step(architecture: str) -> Subject:
    """The second step of AdamW: its moments are not zero any more."""
    import torch

    from tallystick.frameworks.torch.capture.training_step import capture_training_step
    from tallystick.frameworks.torch.state import live_tensors

    example = models.build(architecture)
    model = example.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    _native_step(example, optimizer, example.batch(0))
    captured = capture_training_step(
        model,
        example.loss,
        optimizer,
        example.batch(0),
        clip_norm=CLIP_NORM,
        draws="seed" if example.seeded else "nothing",
    )
    state = {name: _copied(value) for name, value in live_tensors(model, optimizer).items()}
    state["position.step"] = Tensor.of(np.asarray(1, np.int64))
    inputs = _named("inputs", example.batch(1))
    if example.seeded:
        state["rng.seed"] = Tensor.of(np.frombuffer(SEED, "<i8"))
    bindings = {**captured.constants, **state, **inputs, **captured.schedule(2, LEARNING_RATE)}
    native = _native_step(example, optimizer, example.batch(1))
    native |= {name: _copied(value) for name, value in live_tensors(model, optimizer).items()}
    return Subject(architecture, STEP, captured.graph, bindings, native, tuple(sorted(inputs)))


def _native_step(
    example: Example, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor]
) -> dict[str, Tensor]:
    """The loop of PyTorch's manual; loss, gradient norm and gradients by the names of the graph."""
    from torch import nn

    from tallystick.frameworks.torch.randomness import explicit_randomness

    optimizer.zero_grad()
    with explicit_randomness(SEED) if example.seeded else nullcontext():
        loss = example.loss(example.model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = nn.utils.clip_grad_norm_(example.model.parameters(), CLIP_NORM)
    found = {f"gradients.{name}": p.grad for name, p in example.model.named_parameters() if p.grad is not None}
    seen = {name: _copied(value) for name, value in ({"loss": loss, "gradient_norm": norm} | found).items()}
    optimizer.step()
    return seen


def _jax_forward(architecture: str) -> Subject:
    import jax

    from tallystick.frameworks.jax.capture import capture

    example = jax_models.build(architecture)
    captured = capture(example.forward, *example.arguments, roles={0: "weights"})
    native = {"outputs.0": _array(jax.jit(example.forward)(*example.arguments))}
    return Subject(architecture, FORWARD, captured.graph, captured.bindings, native, example.batched, example.looped)


def _jax_step(architecture: str) -> Subject:
    import jax

    from tallystick.frameworks.jax.capture import capture

    example = jax_models.build(architecture)
    captured = capture(example.step, *example.step_arguments, roles=example.roles, results=example.results)
    results = jax.jit(example.step)(*example.step_arguments)
    native = dict(_jax_names(results, example.results))
    return Subject(architecture, STEP, captured.graph, captured.bindings, native, example.step_batched, example.looped)


def _jax_names(results: Any, prefixes: Mapping[int, str]) -> Iterator[tuple[str, Tensor]]:
    from jax.tree_util import keystr, tree_flatten_with_path

    for place, prefix in prefixes.items():
        for path, value in tree_flatten_with_path(results[place])[0]:
            yield ".".join([prefix, *(keystr((key,), simple=True) for key in path)]), _array(value)


def _array(value: Any) -> Tensor:
    return Tensor.of(np.array(value))


def _named(prefix: str, values: Mapping[str, torch.Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": _copied(value) for name, value in values.items()}


def _copied(value: torch.Tensor) -> Tensor:
    from tallystick.frameworks.torch.tensors import to_tensor

    return to_tensor(value.detach().clone())
