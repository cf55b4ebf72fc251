"""Runs whose step graph, or that of one step, is not the one of the training, or whose file of it is another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tallystick.audits.opening import gather_evidence
from tallystick.audits.policy import Policy
from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest, tensor_digest
from tallystick.core.tensors import Tensor, TensorSpec
from tallystick.engines.torch.training.verifier_stack import GraphReplayer
from tallystick.formats.data.step_program import StepOverride, StepProgram
from tallystick.formats.optimizers import GroupRule
from tallystick.formats.records import AnchorRecord, HeaderRecord, Record, StepRecord, anchor_file, graph_file
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.encoding import graph_bytes, graph_root
from tallystick.programs.files import constants_path, save_program
from tallystick.programs.graph import Constant, Graph, Input, Node, Operand, Ref, Role, result_ref
from tallystick.programs.operators.definition import Attribute
from tallystick.recording.run_recorder import header_of
from tallystick.tally.attacks.forging import (
    Forger,
    copy_run,
    read_anchor,
    read_records,
    summariser_of,
    with_value,
    write_records,
)
from tallystick.verdicts.exact import quantise

# The common part of forgers of runs with a step graph: take the steps with another graph, and record them.
#
# As after `forging.seal`, the run is consistent: records, summaries, anchors, roots and claim are those of a run with
# the graph that was really used, under a spec that names the declared graph.

NORM_DECIMALS = 12


def program_of(run: Path) -> StepProgram:
    """The step graph of an honest run with its batches; raises `UsageError` for a run that has none."""
    program = gather_evidence(RunDirectory(run), Policy()).program
    if program is None:
        raise UsageError(f"{run}: the run has no step graph to forge")
    return program


def remake(run: Path, out: Path, practised: StepProgram, declared: StepProgram, spec: Spec | None = None) -> None:
    """Repeat every step of `run` with the graph `practised`, under a spec that names the graph `declared`."""
    forged = copy_run(run, out)
    save_program(forged.graph_path, declared.graph, declared.constants)
    chosen = (spec or forged.spec()).model_copy(update={"graph": graph_root(declared.graph)})
    write_atomically(forged.spec_path, chosen.to_bytes())
    write_records(forged, list(_repeated(forged, chosen, practised)))


def with_nodes(program: StepProgram, nodes: tuple[Node, ...]) -> StepProgram:
    """The program with other nodes."""
    return replace(program, graph=replace(program.graph, nodes=nodes))


def with_output(graph: Graph, name: str, value: str) -> Graph:
    """The graph whose output `name` is another value."""
    outputs = tuple(replace(each, value=value) if each.name == name else each for each in graph.outputs)
    return replace(graph, outputs=outputs)


def _repeated(forged: RunDirectory, spec: Spec, program: StepProgram) -> Iterator[Record]:
    records, replayer = read_records(forged), GraphReplayer(spec, program)
    replayer.restore(read_anchor(forged, 0))
    for record in records:
        changes: dict[str, object] = {}
        if isinstance(record, HeaderRecord):
            yield header_of(spec, forged.environment())
            continue
        if isinstance(record, StepRecord):
            seen = replayer.step(record.index)
            norm = None if record.gradient_norm is None else seen.gradient_norm
            changes = {
                "loss": quantise(seen.loss, spec.recorded.loss_decimals),
                "gradient_norm": None if norm is None else quantise(norm, NORM_DECIMALS),
                "post": seen.summary,
            }
        elif isinstance(record, AnchorRecord):
            state = dict(replayer.state())
            write_state(forged.path / anchor_file(record.index), state)
            changes = {"digest": state_digest(state), "summary": summariser_of(forged, state).at_anchor()}
        yield record.model_copy(update=changes)


# The run is made with another step than that of its recipe, and its spec names the graph of this other step.

HIDDEN_SIZE = np.float32(1e-3)
HIDDEN = "inputs.hidden"
Edit = Callable[[StepProgram], StepProgram]


def taken_with(edit: Edit) -> Forger:
    """A forger that takes every step with an edited graph and declares that graph."""

    def forge(run: Path, out: Path) -> None:
        program = edit(program_of(run))
        remake(run, out, practised=program, declared=program)

    return forge


def graph_of_another_step(run: Path, out: Path) -> None:
    """Take honest steps, and name the graph of another step."""
    program = program_of(run)
    remake(run, out, practised=program, declared=larger_epsilon(program))


def larger_epsilon(program: StepProgram) -> StepProgram:
    """The optimizer divides by √v + 1e-6 instead of √v + 1e-8."""
    return _with_attributes(program, "aten.add.Scalar", {"other": 1e-8}, {"other": 1e-6})


def shorter_memory(program: StepProgram) -> StepProgram:
    """The second moment decays by 0.998 a step instead of 0.999."""
    return _with_attributes(program, "aten.mul.Scalar", {"other": 0.999}, {"other": 0.998})


def looks_ahead(program: StepProgram) -> StepProgram:
    """The attention mask lets a token see later tokens instead of earlier ones."""
    nodes = program.graph.nodes
    if not any(node.operator == "aten.le.Tensor" for node in nodes):
        raise UsageError("this forgery turns a causal mask around, and the step graph of this run builds none")
    turned = {"aten.le.Tensor": "aten.ge.Tensor"}
    return with_nodes(program, tuple(replace(n, operator=turned.get(n.operator, n.operator)) for n in nodes))


def skips_a_tensor(program: StepProgram) -> StepProgram:
    """The largest weight is not updated; its moments are updated as in an honest step."""
    name = largest_weight(program.graph)
    return replace(program, graph=with_output(program.graph, name, name))


def adds_a_constant(program: StepProgram) -> StepProgram:
    """Every step adds the same pattern to the gradient of the largest weight."""
    name = largest_weight(program.graph)
    pattern = _pattern(program.graph.specs()[name])
    constant = Constant("hidden", TensorSpec.of(pattern), tensor_digest(pattern))
    graph = replace(program.graph, constants=(*program.graph.constants, constant))
    return replace(program, graph=_added(graph, name, "hidden"), constants={**program.constants, "hidden": pattern})


def adds_an_input(program: StepProgram) -> StepProgram:
    """Every step adds to the gradient of the largest weight an input that no batch declares."""
    name = largest_weight(program.graph)
    pattern = _pattern(program.graph.specs()[name])
    given = Input(HIDDEN, Role.INPUT, TensorSpec.of(pattern))
    graph = replace(program.graph, inputs=(*program.graph.inputs, given))
    batch = program.batch
    return replace(program, graph=_added(graph, name, HIDDEN), batch=lambda step: {**batch(step), HIDDEN: pattern})


def largest_weight(graph: Graph) -> str:
    """The name of the weight with the most elements."""
    weights = [each for each in graph.inputs if each.name.startswith("weights.")]
    return max(weights, key=lambda each: (each.spec.size, each.name)).name


def _pattern(spec: TensorSpec) -> Tensor:
    signs = np.where(np.arange(spec.size) % 3 == 0, HIDDEN_SIZE, -HIDDEN_SIZE)
    return Tensor.of(np.ascontiguousarray(signs.astype(np.float32).reshape(spec.shape)))


def _added(graph: Graph, name: str, what: Ref) -> Graph:
    """The graph in which `what` is added to the gradient that the optimizer reads for the weight `name`."""
    return gradient_replaced(graph, name, "aten.add.Tensor", {"alpha": 1}, {"other": what})[0]


def gradient_replaced(
    graph: Graph,
    name: str,
    operator: str,
    attributes: Mapping[str, Attribute] | None = None,
    operands: Mapping[str, Ref] | None = None,
) -> tuple[Graph, int]:
    """The graph in which the optimizer reads `operator` of the gradient of a weight, and the number of the new node."""
    moment = f"optimizer.{name.removeprefix('weights.')}.exp_avg"
    position = next((i for i, node in enumerate(graph.nodes) if moment in node.refs), None)
    if position is None:
        raise UsageError("this forgery changes a gradient that AdamW reads, and this run has another optimizer")
    gradient, number = graph.nodes[position].operands["end"], graph.nodes[position].number
    made = Node(
        number, operator, {"self": gradient, **(operands or {})}, dict(attributes or {}), (graph.specs()[name],)
    )

    def moved(ref: Ref) -> Ref:
        """The name of a value after one more node stands before it."""
        match = re.fullmatch(r"n([0-9]+)((?:\.[0-9]+)?)", ref)
        return ref if match is None or int(match[1]) < number else f"n{int(match[1]) + 1}{match[2]}"

    def reading(node: Node) -> Node:
        operands = {
            name: f"n{number}" if operand == gradient else renamed(operand, moved)
            for name, operand in node.operands.items()
        }
        return replace(node, number=node.number + 1, operands=operands)

    nodes = (*graph.nodes[:position], made, *map(reading, graph.nodes[position:]))
    outputs = tuple(replace(each, value=moved(each.value)) for each in graph.outputs)
    return replace(graph, nodes=nodes, outputs=outputs), number


def renamed(operand: Operand, name: Callable[[Ref], Ref]) -> Operand:
    """The operand with other names of its values."""
    if isinstance(operand, tuple):
        return tuple(None if ref is None else name(ref) for ref in operand)
    return None if operand is None else name(operand)


def _with_attributes(
    program: StepProgram, operator: str, old: Mapping[str, Attribute], new: Mapping[str, Attribute]
) -> StepProgram:
    def is_meant(node: Node) -> bool:
        return node.operator == operator and all(node.attributes[name] == value for name, value in old.items())

    nodes = program.graph.nodes
    if not any(map(is_meant, nodes)):
        raise UsageError(f"this forgery changes {operator} with {dict(old)}, and the step graph of this run has none")
    changed = (replace(n, attributes={**n.attributes, **new}) if is_meant(n) else n for n in nodes)
    return with_nodes(program, tuple(changed))


graph_other_epsilon = taken_with(larger_epsilon)
graph_other_decay = taken_with(shorter_memory)
graph_not_causal = taken_with(looks_ahead)
graph_skips_a_tensor = loop_graph_skips_a_tensor = taken_with(skips_a_tensor)
graph_hidden_constant = loop_graph_hidden_constant = taken_with(adds_a_constant)
graph_hidden_input = taken_with(adds_an_input)
loop_graph_of_another_step = graph_of_another_step


# The file of a step graph, or that of its constants, is missing or is another one.


def graph_removed(run: Path, out: Path) -> None:
    """Delete the step graph that the spec names."""
    program_of(run)
    copy_run(run, out).graph_path.unlink()


def graph_exchanged(run: Path, out: Path) -> None:
    """Replace the step graph that the spec names by that of another step."""
    other = larger_epsilon(program_of(run)).graph
    copy_run(run, out).graph_path.write_bytes(graph_bytes(other))


def with_graph_bytes(edit: Callable[[bytes], bytes]) -> Forger:
    """A forger that applies `edit` to the bytes of the step graph."""

    def forge(run: Path, out: Path) -> None:
        program_of(run)
        path = copy_run(run, out).graph_path
        path.write_bytes(edit(path.read_bytes()))

    return forge


graph_unknown_operator = with_graph_bytes(
    lambda graph: graph.replace(b'"aten.embedding.default"', b'"aten.system.default"')
)
graph_respelled = with_graph_bytes(lambda graph: graph.replace(b"{", b"{ ", 1))
loop_graph_removed = graph_removed


def loop_constant_exchanged(run: Path, out: Path) -> None:
    """Change one number in the file of the graph's constants."""
    if not program_of(run).constants:
        raise UsageError("this forgery exchanges a constant of the step graph, and this one has none")
    path = constants_path(copy_run(run, out).graph_path)
    constants = dict(read_state(path))
    name = min(constants)
    write_state(path, with_value(constants, name, 0, constants[name].array().flat[0] + 1))


def loop_constants_removed(run: Path, out: Path) -> None:
    """Delete the file of the graph's constants."""
    path = constants_path(copy_run(run, out).graph_path)
    if not path.exists():
        raise UsageError("this forgery deletes the constants of the step graph, and this one has none")
    path.unlink()


# Some steps of a custom training loop are taken with another program, another rule or another rate.
#
# Every record states what was done, so an exact replay agrees. What such a record names is the prover's word: a further
# program is no part of the training that the spec names.

Rules = tuple[GroupRule, ...]
STEP: Final = 7
"""The first of a segment: where its graph is gone, none of these steps can be replayed, and every sample has one."""
SHIFT: Final = 1000
"""By how much nodes are renumbered: the same program under another root."""


def at_one_step(
    edit: Edit | None = None,
    rules: Callable[[Rules], Rules] | None = None,
    factor: float = 1.0,
    lasts: bool = False,
) -> Forger:
    """A forger that takes `STEP` with another graph, other rules or `factor` times the rates, and states it.

    With `lasts`, all later steps are taken so too. The graph is kept with the run.
    """

    def is_changed(index: int) -> bool:
        return index == STEP or (lasts and index > STEP)

    def forge(run: Path, out: Path) -> None:
        honest = program_of(run)
        edited = honest if edit is None else edit(honest)
        stated = None if rules is None else rules(honest.rules)
        further = StepOverride(None if edit is None else edited.graph, edited.constants, stated)
        taken = replace(
            honest,
            further=lambda index: further if is_changed(index) else None,
            rates=lambda index: tuple(r * factor if is_changed(index) else r for r in honest.rates(index)),
        )
        remake(run, out, practised=taken, declared=honest)
        forged, root = RunDirectory(out), graph_root(edited.graph)
        changes = {"graph": None if edit is None else root, "optimizer": stated}
        if edit is not None:
            save_program(forged.path / graph_file(root), edited.graph, edited.constants)

        def stating(record: Record) -> Record:
            if not isinstance(record, StepRecord) or not is_changed(record.index):
                return record
            return record.model_copy(update=changes | {"learning_rate": record.learning_rate * factor})

        write_records(forged, map(stating, read_records(forged)))

    return forge


def renumbered(program: StepProgram) -> StepProgram:
    """The same program with other node numbers."""
    graph = program.graph
    moved = {
        ref: result_ref(node.number + SHIFT, place)
        for node in graph.nodes
        for place, ref in enumerate(node.outputs)
        if ref is not None
    }

    def moving(node: Node) -> Node:
        operands = {name: renamed(each, lambda ref: moved.get(ref, ref)) for name, each in node.operands.items()}
        return replace(node, number=node.number + SHIFT, operands=operands)

    outputs = tuple(replace(each, value=moved.get(each.value, each.value)) for each in graph.outputs)
    return replace(program, graph=replace(graph, nodes=tuple(map(moving, graph.nodes)), outputs=outputs))


def _with_gradient(
    program: StepProgram, operator: str, attributes: Mapping[str, Attribute] | None = None
) -> StepProgram:
    """The optimizer and the record read `operator` of the gradient of the largest weight."""
    name = largest_weight(program.graph)
    graph, number = gradient_replaced(program.graph, name, operator, attributes)
    return replace(program, graph=with_output(graph, f"gradients.{name.removeprefix('weights.')}", f"n{number}"))


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


def loop_step_graph_exchanged(run: Path, out: Path) -> None:
    """Put the graph of another step in the place of the one that the record names."""
    _graph_of_the_step(run, out).write_bytes(graph_bytes(larger_epsilon(program_of(run)).graph))


def loop_step_graph_removed(run: Path, out: Path) -> None:
    """Delete the graph that the record names."""
    _graph_of_the_step(run, out).unlink()


def _graph_of_the_step(run: Path, out: Path) -> Path:
    loop_step_with_its_own_graph(run, out)
    return out / graph_file(graph_root(renumbered(program_of(run)).graph))


def _with_slower_first_moment(rules: Rules) -> Rules:
    return tuple(rule.model_copy(update={"betas": (0.999, 0.999)}) for rule in rules)


def _with_nearly_the_same_decay(rules: Rules) -> Rules:
    return tuple(rule.model_copy(update={"weight_decay": rule.weight_decay * 1.0000001}) for rule in rules)


loop_step_with_its_own_graph = at_one_step(renumbered)
loop_step_of_another_optimizer = at_one_step(larger_epsilon)
loop_step_hidden_constant = at_one_step(adds_a_constant)
loop_step_gradient_negated = at_one_step(lambda program: _with_gradient(program, "aten.neg.default"))
loop_gradients_scaled_from_a_step = at_one_step(
    lambda program: _with_gradient(program, "aten.mul.Scalar", {"other": 4.0}), lasts=True
)
loop_step_loss_squared = at_one_step(squares_the_loss)
loop_step_update_under_other_decay = at_one_step(negates_the_weights, _with_nearly_the_same_decay)
loop_step_other_betas = at_one_step(rules=_with_slower_first_moment)
loop_step_negative_rate = at_one_step(factor=-1.0)
loop_step_tripled_rate = at_one_step(factor=3.0)
