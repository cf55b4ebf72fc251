"""Forward, backward and optimizer of one training step, captured as one functional graph.

The program that is traced differentiates the exported model with `torch.autograd.grad`, whose sums have the order of
`backward()`, and then applies the optimizer's own arithmetic. Replaying the graph with the kernels of the stack it was
captured on gives the bits of the native loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import fx, nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.dtypes import spec_of
from tallystick.frameworks.torch.export import exported_module, tracing_errors
from tallystick.frameworks.torch.faithful import SEED_OF_CHECK, check_bits, eager_gradients
from tallystick.frameworks.torch.lowering import lower
from tallystick.frameworks.torch.models import labels_of, logits_of
from tallystick.frameworks.torch.randomness import SEED, explicit_randomness, seed_tensor
from tallystick.frameworks.torch.state import live_tensors
from tallystick.frameworks.torch.trainer import POSITION, Trainer
from tallystick.frameworks.torch.updates import Tensors, rule_of, update
from tallystick.graphs.graph import Form, Graph, Input, Role
from tallystick.tensors import Tensor
from tallystick.transcripts.optimizer import UpdateRule, schedule_scalars
from tallystick.transcripts.recipe import Recipe

Batch: TypeAlias = Mapping[str, torch.Tensor]
Loss: TypeAlias = Callable[[Any, Batch], torch.Tensor]
Objective: TypeAlias = Callable[[Any, Batch], tuple[torch.Tensor, torch.Tensor | None]]
Precision: TypeAlias = Callable[[], AbstractContextManager[object]]

ROLES: Final = {
    "weights": Role.WEIGHT,
    "buffers": Role.BUFFER,
    "optimizer": Role.OPTIMIZER,
    "position": Role.OPTIMIZER,
    "schedule": Role.SCHEDULE,
    "rng": Role.RNG,
    "inputs": Role.INPUT,
}


@dataclass(frozen=True)
class CapturedStep:
    """The graph of a step, the bytes of its constants, and the rule of each parameter group."""

    graph: Graph
    constants: Mapping[str, Tensor]
    rules: tuple[UpdateRule, ...]

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the tensors that go from step to step."""
        inputs = {value.name for value in self.graph.inputs}
        return tuple(output.name for output in self.graph.outputs if output.name in inputs)

    def schedule(self, step: int, *learning_rates: float) -> dict[str, Tensor]:
        """The scalars of step `step` (1-based) as the graph names them; one learning rate for each parameter group."""
        scalars = _named_scalars(self.rules, learning_rates, step)
        return {name: Tensor.of(np.asarray(value, np.float64)) for name, value in scalars.items()}


@dataclass(frozen=True)
class _Program:
    """What is traced: everything but the tensors."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: Objective
    rules: tuple[UpdateRule, ...]
    accumulation: int
    clip_norm: float | None
    precision: Precision
    seeded: bool
    names: Sequence[str]
    unallocated: frozenset[str]
    calls: Sequence[nn.Module]

    def __call__(self, *values: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs of one step by name."""
        tensors = dict(zip(self.names, values, strict=True))
        with explicit_randomness(tensors[SEED]) if self.seeded else nullcontext():
            gradients, buffers, seen = self._gradients(tensors)
        with torch.no_grad():
            norm, gradients = self._clipped(gradients)
            kept = {name: value for name, value in tensors.items() if _is_state(name) and name not in self.unallocated}
            kept |= buffers | self._updated(tensors, gradients) | {POSITION: tensors[POSITION] + 1}
        shown = {f"gradients.{name}": value for name, value in gradients.items()}
        return {**kept, **shown, **seen, "gradient_norm": norm}

    def _gradients(self, tensors: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Tensors]:
        leaves = {name: tensors[f"weights.{name}"].detach() for name, _ in self.model.named_parameters()}
        trained = {name: leaves[name].requires_grad_() for name in _trained(self.model)}
        buffers = {name: tensors[f"buffers.{name}"].clone() for name, _ in self.model.named_buffers()}
        replaying = _Replaying(self.model, itertools.cycle(self.calls), leaves | buffers)
        total: dict[str, torch.Tensor] = {}
        losses, watched = [], None
        for index in range(self.accumulation):
            with torch.enable_grad(), self.precision():
                loss, watched = self.objective(replaying, _batch(tensors, index, self.accumulation))
            scaled = loss / self.accumulation if self.accumulation > 1 else loss
            found = torch.autograd.grad(scaled, list(trained.values()), allow_unused=True)
            _accumulate(total, trained, found)
            losses.append(loss.detach())
        state = {f"buffers.{name}": value for name, value in buffers.items()}
        return total, state, {"loss": _mean(losses)} | _moments(watched)

    def _clipped(self, gradients: Tensors) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """As `torch.nn.utils.clip_grad_norm_`, gradient by gradient."""
        norm = torch.nn.utils.get_total_norm(list(gradients.values()), foreach=False)
        if self.clip_norm is None:
            return norm, dict(gradients)
        share = torch.clamp(self.clip_norm / (norm + 1e-6), max=1.0)
        return norm, {name: value * share for name, value in gradients.items()}

    def _updated(self, tensors: Tensors, gradients: Tensors) -> dict[str, torch.Tensor]:
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        changed: dict[str, torch.Tensor] = {}
        for index, (group, rule) in enumerate(zip(self.optimizer.param_groups, self.rules, strict=True)):
            scalars = _Scalars(tensors, "" if len(self.rules) == 1 else f".{index}")
            for name in (names[parameter] for parameter in group["params"] if names[parameter] in gradients):
                slots = {slot: tensors[f"optimizer.{name}.{slot}"] for slot in rule.slots}
                weight = tensors[f"weights.{name}"]
                moved, kept = update(rule, weight, gradients[name], slots, scalars.of(rule, weight.dtype))
                changed[f"weights.{name}"] = moved
                changed |= {f"optimizer.{name}.{slot}": value for slot, value in kept.items()}
        return changed


class _Scalars:
    """The schedule of one parameter group, each scalar rounded once to the dtype that it meets."""

    def __init__(self, tensors: Tensors, suffix: str) -> None:
        self._tensors, self._suffix = tensors, suffix
        self._rounded: dict[torch.dtype, dict[str, torch.Tensor]] = {}

    def of(self, rule: UpdateRule, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The scalars of `rule` in `dtype`."""
        if dtype not in self._rounded:
            named = {name: self._tensors[f"schedule.{name}{self._suffix}"] for name in schedule_scalars(rule, 0.0, 1)}
            self._rounded[dtype] = {name: value.to(dtype) for name, value in named.items()}
        return self._rounded[dtype]


def capture_training_step(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    batch: Batch | Sequence[Batch],
    *,
    clip_norm: float | None = None,
    accumulation: int = 1,
    seeded: bool = False,
) -> CapturedStep:
    """One step of `model` as a graph: `loss(model, batch)`, its gradients, clipping, the optimizer.

    Inputs are the state by its usual names, `inputs.<name>` (`inputs.<k>.<name>` for micro-batch k of several) and
    `schedule.<name>`. Outputs are the state, `loss`, `gradient_norm` and `gradients.<parameter>` as the optimizer gets
    them. A parameter without a gradient is skipped, as `torch.optim` does.

    Args:
        model: in the mode it is trained in; it is neither changed nor moved.
        loss: calls the model it is given on a batch, and returns one number.
        optimizer: AdamW, Adam or SGD over parameters of `model`.
        batch: example tensors; shapes and dtypes count. All micro-batches have them.
        clip_norm: as `clip_grad_norm_` is called before the optimizer steps.
        accumulation: the number of micro-batches; each loss is divided by it.
        seeded: dropout draws from the input `rng.seed`, see `explicit_randomness`.

    Raises:
        UnavailableError: something in the step cannot be captured, and the line names the operator or the control flow;
            or the graph has not the bits of the eager step on `batch`.
    """

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, None]:
        return loss(called, examples), None

    return _captured(model, objective, optimizer, batch, clip_norm, accumulation, seeded, nullcontext)


def capture_recipe_step(recipe: Recipe, vocabulary: int) -> CapturedStep:
    """The step that `Trainer` takes on a recipe; also gives `activation.mean` and `activation.rms` where recorded.

    Raises `UnavailableError` where the step cannot be captured: a recipe with dropout, for example, whose random
    numbers come from a generator.
    """
    trainer = Trainer(recipe, vocabulary, "cpu")

    def objective(called: Any, examples: Batch) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = logits_of(called, dict(examples))
        loss = nn.functional.cross_entropy(logits.float(), labels_of(dict(examples)))
        return loss, logits if recipe.record.activation_checksum else None

    def precision() -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.training.dtype == "bf16")

    settings = recipe.training
    return _captured(
        trainer.model,
        objective,
        trainer.optimizer,
        _example_batch(recipe, vocabulary),
        recipe.optimizer.clip_norm,
        settings.accumulation,
        False,
        precision,
    )


def _example_batch(recipe: Recipe, vocabulary: int) -> dict[str, torch.Tensor]:
    """A batch of the recipe's shapes with values that differ."""
    settings, draw = recipe.training, torch.Generator().manual_seed(0)
    if recipe.data.kind == "digits":
        images = torch.rand(settings.batch, 1, 8, 8, generator=draw)
        return {"images": images, "labels": torch.randint(10, (settings.batch,), generator=draw)}
    shape = (settings.batch, settings.sequence)
    return {name: torch.randint(vocabulary, shape, generator=draw) for name in ("inputs", "targets")}


def _captured(
    model: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    batch: Batch | Sequence[Batch],
    clip_norm: float | None,
    accumulation: int,
    seeded: bool,
    precision: Precision,
) -> CapturedStep:
    examples = dict(batch) if isinstance(batch, Mapping) else dict(batch[0])
    rules = tuple(rule_of(optimizer, group) for group in optimizer.param_groups)
    calls = _exported_calls(model, objective, examples, precision)
    held = _state(model, optimizer)
    unallocated = {name: value for name, value in _slots(model, optimizer, rules) if name not in held}
    inputs = dict(sorted((held | unallocated | _fed(rules, examples, accumulation, seeded)).items()))
    program = _Program(
        model,
        optimizer,
        objective,
        rules,
        accumulation,
        clip_norm,
        precision,
        seeded,
        tuple(inputs),
        frozenset(unallocated),
        calls,
    )
    with tracing_errors():
        traced, names = _traced(program, inputs)
    declared = {
        name: Input(name, ROLES[name.partition(".")[0]], spec_of(value))
        for name, value in inputs.items()
        if name not in unallocated or name in names
    }
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    results = traced.graph.output_node().args[0]
    lowered = lower(
        traced.graph,
        {node.name: declared[name] for node, name in zip(placeholders, inputs, strict=True) if name in declared},
        {},
        list(zip(names, results, strict=True)),  # type: ignore[arg-type]
        attributes=lambda name: _attribute(traced, name),
        form=Form.VERIFICATION,
    )
    captured = CapturedStep(lowered.graph, lowered.constants, rules)
    _check_bits(captured, program, examples, {name: inputs[name] for name in declared})
    return captured


def _check_bits(captured: CapturedStep, program: _Program, examples: Batch, inputs: Mapping[str, torch.Tensor]) -> None:
    """Compare with the eager step on the example batch; every micro-batch is another order of its elements."""
    count = program.accumulation
    batches = [{name: _rolled(value, index) for name, value in examples.items()} for index in range(count)]
    given = {
        _prefix(index, count) + name: value for index, batch in enumerate(batches) for name, value in batch.items()
    }
    given |= {name: torch.zeros_like(value) for name, value in inputs.items() if name not in given}
    given |= {SEED: seed_tensor(SEED_OF_CHECK)} if program.seeded else {}
    with torch.random.fork_rng(devices=[]):
        check_bits(
            captured.graph,
            captured.constants,
            program.model,
            lambda model: eager_gradients(
                model, program.objective, batches, program.clip_norm, program.precision, program.seeded
            ),
            {name: value for name, value in given.items() if not name.startswith(("weights.", "buffers."))},
        )


def _rolled(value: torch.Tensor, places: int) -> torch.Tensor:
    return value.roll(places, 0) if value.dim() else value


def _exported_calls(
    model: nn.Module, objective: Objective, examples: Batch, precision: Precision
) -> Sequence[nn.Module]:
    """The model exported once for each time that the objective calls it."""
    exporting = _Exporting(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), precision():
        objective(exporting, {name: value.clone() for name, value in examples.items()})
    return exporting.calls


class _Called:
    """Stands where the model is called; whatever else is asked of the model is answered by the model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Exporting(_Called):
    """Exports the model for the arguments it is called with, and answers without changing its buffers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.calls: list[nn.Module] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(exported_module(self._model, args, kwargs))
        held = {name: value.clone() for name, value in self._model.named_buffers()}
        return functional_call(self._model, held, args, kwargs)


class _Replaying(_Called):
    """Runs the exported model on tensors that are given."""

    def __init__(self, model: nn.Module, calls: Iterator[nn.Module], tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(model)
        self._calls, self._tensors = calls, tensors

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = next(self._calls)
        held = dict(_all_names(module, self._model, self._tensors))
        return functional_call(module, held, args, kwargs, tie_weights=False)


def _all_names(module: nn.Module, model: nn.Module, tensors: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of the exported module under each of its names: tied weights have several."""
    first = {id(value): name for name, value in (*model.named_parameters(), *model.named_buffers())}
    live = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    for name, value in live:
        canonical = first.get(id(value), name)
        if canonical in tensors:
            yield name, tensors[canonical]


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """An example of every tensor of the state: each one of its own, because tracing takes one object for one value."""
    found = {name: torch.empty_like(value.detach()) for name, value in live_tensors(model, optimizer).items()}
    return found | {POSITION: torch.zeros((), dtype=torch.int64)}


def _fed(rules: Sequence[UpdateRule], examples: Batch, accumulation: int, seeded: bool) -> dict[str, torch.Tensor]:
    """An example of what is given anew at each step."""
    prefixes = [_prefix(index, accumulation) for index in range(accumulation)]
    found = {f"{prefix}{name}": torch.empty_like(value) for prefix in prefixes for name, value in examples.items()}
    scalars = _named_scalars(rules, [0.0] * len(rules), 1)
    found |= {name: torch.zeros((), dtype=torch.float64) for name in scalars}
    return found | ({SEED: seed_tensor(bytes(16))} if seeded else {})


def _slots(
    model: nn.Module, optimizer: torch.optim.Optimizer, rules: Sequence[UpdateRule]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The slots of every parameter; an optimizer allocates those of parameters that get a gradient when it steps."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group, rule in zip(optimizer.param_groups, rules, strict=True):
        for parameter in group["params"]:
            for slot in rule.slots:
                empty = torch.zeros(()) if slot == "step" else torch.empty_like(parameter.detach())
                yield f"optimizer.{names[parameter]}.{slot}", empty


def _traced(program: _Program, inputs: Mapping[str, torch.Tensor]) -> tuple[fx.GraphModule, list[str]]:
    """The traced program and the names of its outputs.

    Traced twice, gradients first and mutations then: `requires_grad_` is refused while functionalising.
    """
    names: list[str] = []

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        results = program(*values)
        names[:] = sorted(results)
        return [results[name] for name in names]

    differentiated = make_fx(step, DECLARED, tracing_mode="fake")(*inputs.values())
    with torch.no_grad():
        functional = functionalize(differentiated, remove="mutations")
        return make_fx(functional, tracing_mode="fake")(*inputs.values()), names


def _batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Batch norm through the overload that declares that it writes into the running statistics."""
    if not training or mean is None or variance is None:
        return NotImplemented
    return torch.ops.aten._native_batch_norm_legit.default(x, weight, bias, mean, variance, training, momentum, eps)


DECLARED: Final[dict[Any, Callable[..., Any]]] = {torch.ops.aten.native_batch_norm.default: _batch_norm}
"""Operators whose schema hides that they write in place, and what says so."""


def _attribute(module: nn.Module, name: str) -> torch.Tensor:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        raise UnavailableError(f"{name} cannot be captured: it is a part of the program, and no tensor")
    return value


def _is_state(name: str) -> bool:
    return name.startswith(("weights.", "buffers.", "optimizer.", "position."))


def _trained(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _prefix(index: int, accumulation: int) -> str:
    return "inputs." if accumulation == 1 else f"inputs.{index}."


def _batch(tensors: Tensors, index: int, accumulation: int) -> dict[str, torch.Tensor]:
    prefix = _prefix(index, accumulation)
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _accumulate(total: dict[str, torch.Tensor], trained: Tensors, found: Sequence[torch.Tensor | None]) -> None:
    """Add what one backward pass gave, laid out as its parameter, which is how `backward()` keeps a gradient."""
    for (name, parameter), gradient in zip(trained.items(), found, strict=True):
        if gradient is not None:
            same = gradient.stride() == parameter.stride()
            laid = gradient if same else gradient.clone(memory_format=torch.contiguous_format)
            total[name] = total[name] + laid if name in total else laid


def _mean(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).mean()


def _moments(watched: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Mean and root mean square in float64, as the trainer records them."""
    if watched is None:
        return {}
    values = watched.detach().double()
    return {"activation.mean": values.mean(), "activation.rms": values.square().mean().sqrt()}


def _named_scalars(rules: Sequence[UpdateRule], learning_rates: Sequence[float], step: int) -> dict[str, float]:
    assert len(rules) == len(learning_rates)
    suffixes = [""] if len(rules) == 1 else [f".{index}" for index in range(len(rules))]
    return {
        f"schedule.{name}{suffix}": value
        for rule, rate, suffix in zip(rules, learning_rates, suffixes, strict=True)
        for name, value in schedule_scalars(rule, rate, step).items()
    }
