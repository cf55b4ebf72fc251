"""Runs of a custom training loop whose step graph, or that of one step, is not the loop's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from tallystick.core.digests import Digest
from tallystick.core.errors import UsageError
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensors import Tensor
from tallystick.formats.optimizers import GroupRule
from tallystick.formats.records import Record, StepRecord, graph_file
from tallystick.formats.step_program import StepOverride, StepProgram
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.files import constants_path, save_program
from tallystick.programs.graph import Node, Operand, Ref, result_ref
from tallystick.tally.attacks.forging import (
    MISSING,
    Attack,
    Forger,
    accepted,
    copy_run,
    inconclusive,
    read_records,
    rejected,
    write_records,
)
from tallystick.tally.attacks.step_graphs import (
    Edit,
    adds_a_constant,
    forge_removed,
    forge_with,
    gradient_replaced,
    larger_epsilon,
    largest_weight,
    program_of,
    remake,
    skips_a_tensor,
    with_output,
)

# A run of a custom training loop whose step graph is not that of the loop, or is incomplete.


def forge_graph_named_only(run: Path, out: Path) -> None:
    """Name the graph of a step with another ε than the real one."""
    program = program_of(run)
    remake(run, out, practised=program, declared=larger_epsilon(program))


def forge_constants(run: Path, out: Path) -> None:
    """Change one number in the file of the graph's constants."""
    if not program_of(run).constants:
        raise UsageError("this forgery exchanges a constant of the step graph, and this one has none")
    path = constants_path(copy_run(run, out).graph_path)
    constants = dict(read_state(path))
    name = min(constants)
    values = np.array(constants[name].array())
    values.flat[0] += 1
    write_state(path, constants | {name: Tensor.of(values)})


def forge_constants_removed(run: Path, out: Path) -> None:
    """Delete the file of the graph's constants."""
    path = constants_path(copy_run(run, out).graph_path)
    if not path.exists():
        raise UsageError("this forgery deletes the constants of the step graph, and this one has none")
    path.unlink()


IS_THE_PROGRAM = (
    "no recipe says what the step should be: the graph is the program, the report assumes it, "
    "and a person who relies on it must read it (`tally graph show`, `tally graph diff`)"
)
NOT_REPLAYED = "no step is taken"

LOOP_GRAPH = (
    Attack(
        name="loop-graph-of-another-step",
        change="the spec names the graph of a step with another ε than the one that was taken; resealed",
        forge=forge_graph_named_only,
        reference="loop",
        screens=accepted(NOT_REPLAYED),
        exact=rejected("state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="loop-graph-removed",
        change="the step graph that the spec names is deleted",
        forge=forge_removed,
        reference="loop",
        screens=MISSING,
        exact=MISSING,
        tolerant=MISSING,
        claim=MISSING,
    ),
    Attack(
        name="loop-constant-exchanged",
        change="one number in the file of the graph's constants is another one",
        forge=forge_constants,
        reference="loop",
        screens=rejected("step graph"),
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
        claim=rejected("step graph"),
    ),
    Attack(
        name="loop-constants-removed",
        change="the file of the graph's constants is deleted",
        forge=forge_constants_removed,
        reference="loop",
        screens=MISSING,
        exact=MISSING,
        tolerant=MISSING,
        claim=MISSING,
    ),
    Attack(
        name="loop-graph-hidden-constant",
        change="a constant pattern is added to the gradient of one weight tensor, in the graph as in the training",
        forge=forge_with(adds_a_constant),
        reference="loop",
        screens=accepted(IS_THE_PROGRAM),
        exact=accepted(IS_THE_PROGRAM),
        tolerant=accepted(IS_THE_PROGRAM),
    ),
    Attack(
        name="loop-graph-skips-a-tensor",
        change="the update leaves one weight tensor as it was, in the graph as in the training",
        forge=forge_with(skips_a_tensor),
        reference="loop",
        screens=accepted(IS_THE_PROGRAM),
        exact=accepted(IS_THE_PROGRAM),
        tolerant=accepted(IS_THE_PROGRAM),
    ),
)


# A run of a custom training loop in which one step names a step graph of its own.

STEP: Final = 7
"""The first of a segment: where its graph is gone, none of these steps can be replayed, and every sample has one."""
SHIFT: Final = 1000
"""By how much nodes are renumbered: the same program under another root."""


def forge_one_step(edit: Edit) -> Forger:
    """A forger that takes one step with an edited graph, keeps that graph with the run and names it in the record."""

    def forge(run: Path, out: Path) -> None:
        honest = program_of(run)
        edited = edit(honest)
        taken = replace(honest, further=lambda i: StepOverride(edited.graph, edited.constants) if i == STEP else None)
        remake(run, out, practised=taken, declared=honest)
        forged, root = RunDirectory(out), graph_root(edited.graph)
        save_program(forged.path / graph_file(root), edited.graph, edited.constants)
        write_records(forged, [_naming(record, root) for record in read_records(forged)])

    return forge


def _naming(record: Record, root: Digest) -> Record:
    is_it = isinstance(record, StepRecord) and record.index == STEP
    return record.model_copy(update={"graph": root}) if is_it else record


def renumbered(program: StepProgram) -> StepProgram:
    """The same program with other node numbers."""
    graph = program.graph
    moved = {
        ref: result_ref(node.number + SHIFT, place)
        for node in graph.nodes
        for place, ref in enumerate(node.outputs)
        if ref is not None
    }

    def of(operand: Operand) -> Operand:
        if isinstance(operand, tuple):
            return tuple(None if ref is None else moved.get(ref, ref) for ref in operand)
        return None if operand is None else moved.get(operand, operand)

    def moving(node: Node) -> Node:
        operands = {name: of(each) for name, each in node.operands.items()}
        return replace(node, number=node.number + SHIFT, operands=operands)

    outputs = tuple(replace(each, value=_named(each.value, moved)) for each in graph.outputs)
    return replace(program, graph=replace(graph, nodes=tuple(map(moving, graph.nodes)), outputs=outputs))


def _named(ref: Ref, moved: dict[Ref, Ref]) -> Ref:
    return moved.get(ref, ref)


def forge_exchanged(run: Path, out: Path) -> None:
    """Put the graph of another step in the place of the one that the record names."""
    path = _graph_of_the_step(run, out)
    path.write_bytes(graph_bytes(larger_epsilon(program_of(run)).graph))


def forge_further_removed(run: Path, out: Path) -> None:
    """Delete the graph that the record names."""
    _graph_of_the_step(run, out).unlink()


def _graph_of_the_step(run: Path, out: Path) -> Path:
    forge_one_step(renumbered)(run, out)
    root: Digest = graph_root(renumbered(program_of(run)).graph)
    return RunDirectory(out).path / graph_file(root)


HONEST = accepted("it is the same program, with other numbers of its nodes")
LEFT_OUT = accepted(NOT_REPLAYED)

LOOP_FURTHER_GRAPH = (
    Attack(
        name="loop-step-with-its-own-graph",
        change="nothing; one step names a graph of its own, which is that of the others with its nodes renumbered",
        forge=forge_one_step(renumbered),
        reference="loop",
        screens=HONEST,
        exact=HONEST,
        tolerant=HONEST,
        is_honest=True,
    ),
    Attack(
        name="loop-step-of-another-optimizer",
        change="one step is taken with another ε, and its record names the graph of that step; resealed",
        forge=forge_one_step(larger_epsilon),
        reference="loop",
        screens=LEFT_OUT,
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
    ),
    Attack(
        name="loop-step-hidden-constant",
        change="one step adds a constant pattern to a finished gradient, and its record names its graph; resealed",
        forge=forge_one_step(adds_a_constant),
        reference="loop",
        screens=LEFT_OUT,
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
    ),
    Attack(
        name="loop-step-graph-exchanged",
        change="the graph of a step with another ε lies in the place of the one that a record names",
        forge=forge_exchanged,
        reference="loop",
        screens=LEFT_OUT,
        exact=rejected("step graph"),
        tolerant=rejected("step graph"),
    ),
    Attack(
        name="loop-step-graph-removed",
        change="the graph that a record names is deleted",
        forge=forge_further_removed,
        reference="loop",
        screens=LEFT_OUT,
        exact=MISSING,
        tolerant=MISSING,
    ),
)


# Runs of a custom training loop in which some steps are taken with another program, another rule or another rate.
#
# Every record states what was done, so an exact replay agrees. What such a record names is the prover's word: a further
# program is no part of the training that the spec names.

Rules = tuple[GroupRule, ...]


@dataclass(frozen=True)
class Variation:
    """What is done in some steps: another graph, other rules that are stated, and rates times a factor."""

    edit: Edit | None = None
    rules: Callable[[Rules], Rules] | None = None
    factor: float = 1.0
    lasts: bool = False

    def forge(self, run: Path, out: Path) -> None:
        """Take `STEP`, or all steps from there on if it `lasts`, as said, and name it in their records."""
        honest = program_of(run)
        edited = honest if self.edit is None else self.edit(honest)
        rules = None if self.rules is None else self.rules(honest.rules)
        further = StepOverride(None if self.edit is None else edited.graph, edited.constants, rules)
        taken = replace(
            honest,
            further=lambda index: further if self._concerns(index) else None,
            rates=lambda index: tuple(r * self.factor if self._concerns(index) else r for r in honest.rates(index)),
        )
        remake(run, out, practised=taken, declared=honest)
        forged, root = RunDirectory(out), graph_root(edited.graph)
        changes = {"graph": root if self.edit is not None else None, "optimizer": rules}
        if self.edit is not None:
            save_program(forged.path / graph_file(root), edited.graph, edited.constants)

        def stating(record: Record) -> Record:
            if not isinstance(record, StepRecord) or not self._concerns(record.index):
                return record
            return record.model_copy(update=changes | {"learning_rate": record.learning_rate * self.factor})

        write_records(forged, [stating(record) for record in read_records(forged)])

    def _concerns(self, index: int) -> bool:
        return index == STEP or (self.lasts and index > STEP)


def negates_a_gradient(program: StepProgram) -> StepProgram:
    """The largest weight goes up its gradient instead of down."""
    name = largest_weight(program.graph)
    graph, number = gradient_replaced(program.graph, name, "aten.neg.default")
    gradient = f"gradients.{name.removeprefix('weights.')}"
    return replace(program, graph=with_output(graph, gradient, f"n{number}"))


def scales_a_gradient(program: StepProgram) -> StepProgram:
    """The gradient of the largest weight counts four times."""
    name = largest_weight(program.graph)
    graph, number = gradient_replaced(program.graph, name, "aten.mul.Scalar", {"other": 4.0})
    gradient = f"gradients.{name.removeprefix('weights.')}"
    return replace(program, graph=with_output(graph, gradient, f"n{number}"))


def squares_the_loss(program: StepProgram) -> StepProgram:
    """The loss that is recorded is the square of the one that is minimised."""
    return _with_last(program, "loss", "aten.mul.Tensor", lambda value: {"self": value, "other": value})


def negates_the_weights(program: StepProgram) -> StepProgram:
    """The largest weight changes its sign after the update."""
    return _with_last(program, largest_weight(program.graph), "aten.neg.default", lambda value: {"self": value})


def _with_last(
    program: StepProgram, output: str, operator: str, operands: Callable[[Ref], dict[str, Ref]]
) -> StepProgram:
    """The program with one more node at its end, which gives `output`."""
    graph = program.graph
    value = next(named.value for named in graph.outputs if named.name == output)
    number = graph.nodes[-1].number + 1
    last = Node(number, operator, dict(operands(value)), {}, (graph.specs()[value],))
    return replace(program, graph=with_output(replace(graph, nodes=(*graph.nodes, last)), output, f"n{number}"))


def _stating(**settings: object) -> Callable[[Rules], Rules]:
    def state(rules: Rules) -> Rules:
        return tuple(rule.model_copy(update=settings) for rule in rules)

    return state


def _nearly_the_same_decay(rules: Rules) -> Rules:
    return tuple(rule.model_copy(update={"weight_decay": rule.weight_decay * 1.0000001}) for rule in rules)


NO_REPLAY = accepted("no step is taken, and no graph is read")
UNEXPLAINED = inconclusive("the step is another program, which nobody approved: `tally graph diff` shows it")
NOT_CARRIED = inconclusive("the graph of the step has not the settings that its record states")
IMPOSSIBLE = inconclusive("no rule of an optimizer takes a negative rate")
STATED = accepted("a loop states its rates, and the report their range and the first step off a schedule; see --strict")


def _varied(name: str, change: str, variation: Variation, **seen: object) -> Attack:
    expected = {"screens": NO_REPLAY, "exact": UNEXPLAINED, "tolerant": UNEXPLAINED} | seen
    return Attack(name=name, change=change, forge=variation.forge, reference="loop", **expected)  # type: ignore[arg-type]


LOOP_VARIATION = (
    _varied(
        "loop-step-gradient-negated",
        "one step goes up the gradient of a weight, and its record names the graph of that step; resealed",
        Variation(negates_a_gradient),
    ),
    _varied(
        "loop-gradients-scaled-from-a-step",
        "from one step on a gradient counts four times, and records name the graph of these steps; resealed",
        Variation(scales_a_gradient, lasts=True),
    ),
    _varied(
        "loop-step-loss-squared",
        "one step records the square of its loss, and its record names a graph that does; resealed",
        Variation(squares_the_loss),
    ),
    _varied(
        "loop-step-update-under-other-decay",
        "one step states weight decay × 1.0000001, and names a graph that negates a weight after the update; resealed",
        Variation(negates_the_weights, _nearly_the_same_decay),
    ),
    _varied(
        "loop-step-other-betas",
        "one step states β₁ = 0.999, which makes its step larger; its graph is that of the spec; resealed",
        Variation(rules=_stating(betas=(0.999, 0.999))),
        exact=NOT_CARRIED,
        tolerant=NOT_CARRIED,
    ),
    _varied(
        "loop-step-negative-rate",
        "one step is taken with a negative learning rate, which its record states; resealed",
        Variation(factor=-1.0),
        exact=IMPOSSIBLE,
        tolerant=IMPOSSIBLE,
    ),
    _varied(
        "loop-step-tripled-rate",
        "one step is taken with three times the learning rate, which its record states; resealed",
        Variation(factor=3.0),
        exact=STATED,
        tolerant=STATED,
    ),
)
