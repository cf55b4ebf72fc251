"""Checks that a captured step gives the bits of the eager step: both run once on the same values.

A model can behave differently during export, because libraries branch on it. Then the graph is another program than the
one that trains. Comparing loss and gradients is enough, because the optimizer's arithmetic is this project's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.func import functional_call

from tallystick.commitments.mt19937 import GOES_ON, seeded
from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.capture.captured_step import CapturedStep
from tallystick.frameworks.torch.capture.step import Batch, TrainingStep
from tallystick.frameworks.torch.engine import TorchEngine
from tallystick.frameworks.torch.philox_operators import seed_tensor
from tallystick.frameworks.torch.randomness import explicit_randomness
from tallystick.frameworks.torch.seeded_forward import recomputed
from tallystick.graphs.graph import Graph
from tallystick.workloads.names import BATCH, GENERATOR, GENERATOR_MOVE, SEED

SEED_OF_CHECK = bytes(range(16))
GENERATOR_SEED = 1


def check_bits(
    captured: CapturedStep, step: TrainingStep, batches: Sequence[Batch], given: Mapping[str, torch.Tensor]
) -> None:
    """Raise `UnavailableError` unless graph and eager model give the same loss, norm and gradients, bit by bit.

    Args:
        captured: the captured graph of `step`.
        step: the eager step; it is taken with copies of its model's tensors.
        batches: the micro-batches.
        given: the inputs of the graph without its state; weights and buffers are the model's tensors.
    """
    expected = _run_eagerly(step, batches)
    if not (differing := _differing(expected, _replayed(captured, step.model, given, expected))):
        return
    if again := _differing(expected, _run_eagerly(step, batches)):
        raise UnavailableError(
            f"two eager steps have not the same bits, first in {again}: "
            "call torch.use_deterministic_algorithms(True), or use one thread"
        )
    raise UnavailableError(
        f"the captured step has not the bits of the eager one, first in {differing}: "
        f"the model or a library computes otherwise while it is exported{_eager_attention(step.model)}"
    )


def _eager_attention(model: nn.Module) -> str:
    """What helps some models of transformers, which have several implementations of attention."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return "" if kind in {None, "eager"} else f" (its attention is {kind}; others have attn_implementation='eager')"


def _differing(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str:
    """The first name under which they have other bits; NaN is not compared."""
    pairs = ((name, value, found[name]) for name, value in expected.items())
    return next((name for name, value, other in pairs if not torch.equal(value, other) and not value.isnan().any()), "")


def _run_eagerly(step: TrainingStep, batches: Sequence[Batch]) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        return _eager(step, batches)


def _replayed(
    captured: CapturedStep, model: nn.Module, given: Mapping[str, torch.Tensor], wanted: Collection[str]
) -> Mapping[str, torch.Tensor]:
    """The `wanted` outputs; what only the optimizer needs is neither computed nor allocated."""
    engine, part = TorchEngine(next(model.parameters()).device.type), _giving(captured.graph, wanted)
    live = {f"weights.{name}": value.detach() for name, value in model.named_parameters()}
    live |= {f"buffers.{name}": value.detach() for name, value in model.named_buffers()}
    fixed = {name: engine.load(tensor) for name, tensor in captured.constants.items()}
    return engine.compile(part)({**given, **fixed, **live})


def _giving(graph: Graph, wanted: Collection[str]) -> Graph:
    """The part of a graph that gives these outputs."""
    outputs, nodes = tuple(each for each in graph.outputs if each.name in wanted), []
    needed = {output.value for output in outputs}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(filter(None, node.outputs)):
            nodes.append(node)
            needed.update(node.refs)
    inputs = tuple(each for each in graph.inputs if each.name in needed)
    return replace(graph, inputs=inputs, nodes=tuple(reversed(nodes)), outputs=outputs)


def drawn_from(step: TrainingStep) -> dict[str, torch.Tensor]:
    """The inputs of the captured step that its draws follow from, as the eager step is given them."""
    if step.draws == "seed":
        return {SEED: seed_tensor(SEED_OF_CHECK)}
    if step.draws == "generator":
        state = torch.from_numpy(seeded(GENERATOR_SEED))
        return {GENERATOR: state, BATCH + GENERATOR_MOVE: torch.tensor([GOES_ON, 0])}
    return {}


@contextmanager
def _drawing(step: TrainingStep) -> Iterator[None]:
    """What the eager step draws from; its caller restores the generator."""
    if step.draws != "seed":
        torch.manual_seed(GENERATOR_SEED)
        yield
        return
    stream, model = explicit_randomness(SEED_OF_CHECK), step.model
    with stream, recomputed(model, stream):
        yield


class _Eager(nn.Module):
    """The eager loop over micro-batches as a module around the model.

    It is called with other tensors in the place of the model's own, in the model itself and not in a copy of it: a
    library that exchanges `forward` for a function holds on to the model that it had, and a copy would train that one.
    """

    def __init__(self, step: TrainingStep, batches: Sequence[Batch]) -> None:
        super().__init__()
        self.model, self._step, self._batches = step.model, step, batches

    def forward(self) -> dict[str, torch.Tensor]:
        """Loss, gradient norm and gradients, by the names of the graph's outputs; checkpoints are recomputed here."""
        step, losses = self._step, []
        for batch in self._batches:
            with step.precision():
                loss, _ = step.objective(self.model, batch)
            step.share(loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        gradients = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(list(gradients.values()))
        if step.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(list(self.model.parameters()), step.clip_norm)
        held = {f"weights.{name}": p.detach() for name, p in self.model.named_parameters()}
        held |= {f"buffers.{name}": value for name, value in self.model.named_buffers()}
        gradients |= step.edits.edited(gradients, held)
        shown = {f"gradients.{name}": value for name, value in gradients.items()}
        return {"loss": step.reduced(losses), "gradient_norm": norm} | shown


def _eager(step: TrainingStep, batches: Sequence[Batch]) -> dict[str, torch.Tensor]:
    """What the eager step gives on copies of the model's tensors; the gradients of the loop stay as they are."""
    live = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in step.model.named_parameters()}
    live |= {name: value.detach().clone() for name, value in step.model.named_buffers()}
    with _drawing(step):
        found: dict[str, torch.Tensor] = functional_call(
            _Eager(step, batches), {f"model.{name}": value for name, value in live.items()}, ()
        )
    return found
