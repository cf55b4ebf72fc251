"""Runs of a custom training loop in which some steps are taken with another program, another rule or another rate.

Every record states what was done, so an exact replay agrees. What such a record names is the prover's word: a further
program is no part of the training that the spec names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, inconclusive
from tallystick.attacks.forging import read_records, write_records
from tallystick.attacks.graph_forging import program_of, remake, with_output
from tallystick.attacks.loop_further_graph import STEP
from tallystick.attacks.step_graph_edited import Edit, gradient_replaced, largest_weight
from tallystick.graphs.files import save_program
from tallystick.graphs.graph import Node, Ref
from tallystick.graphs.root import graph_root
from tallystick.store.run import RunDirectory
from tallystick.transcripts.record import Record, StepRecord, graph_file
from tallystick.transcripts.rule import GroupRule
from tallystick.workloads.program import Further, StepProgram

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
        further = Further(None if self.edit is None else edited.graph, edited.constants, rules)
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


ATTACKS = (
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
