"""Captures a model as a graph, at its sizes or for a range of named dimensions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from tallystick.core.canonical_json import Json, decode
from tallystick.core.errors import TallyError, UnavailableError, UsageError
from tallystick.core.tensors import Tensor
from tallystick.engines.torch.capture.export import exported_program, grouped_decompositions, tracing_errors
from tallystick.engines.torch.capture.lowering import (
    bound_arguments,
    live_nodes,
    lower,
    only_moves_bytes,
    operator_name,
)
from tallystick.engines.torch.capture.module_trail import exported_module
from tallystick.engines.torch.tensors import spec_of, to_tensor
from tallystick.programs.encoding import graph_bytes
from tallystick.programs.files import ModulePaths
from tallystick.programs.graph import Graph, GraphForm, Input, Role
from tallystick.programs.operators.definition import OPERATORS
from tallystick.programs.templates import Template

# The graph is the program of `torch.export` before any decomposition, as data.
#
# Operators stay as the model calls them (a fused attention is one node), because decomposition changes bits. A program
# that writes in place is made functional.

PREFIXES: Final = {
    InputKind.PARAMETER: ("weights.", Role.WEIGHT),
    InputKind.BUFFER: ("buffers.", Role.BUFFER),
    InputKind.USER_INPUT: ("inputs.", Role.INPUT),
}
COMPOSITE: Final = "CompositeImplicitAutograd"
OUTPUTS: Final = {OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION}


@dataclass(frozen=True)
class CapturedModel:
    """A graph, the bytes of its constants, and the weights and buffers that it reads, by their names in the graph.

    `weights` share memory with the model if they are contiguous on the CPU: copy them before training goes on.
    `modules` names the module that each node came from, by the node's number; it is no part of the graph.
    """

    graph: Graph
    constants: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]
    modules: ModulePaths = field(default_factory=dict)

    @property
    def bindings(self) -> dict[str, Tensor]:
        """All sources of the graph except the inputs `inputs.…`."""
        return {**self.constants, **self.weights}


def capture(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | torch.Tensor = (),
    kwargs: Mapping[str, Any] | None = None,
    form: GraphForm = GraphForm.LOGICAL,
) -> CapturedModel:
    """The graph of `model` for inputs of these shapes and dtypes.

    Its inputs are `weights.<name>`, `buffers.<name>` and `inputs.<name>`; tied weights appear once. Its outputs are
    `outputs.<name>` by the fields of the model's return value (`outputs.0` for a plain tensor).

    Args:
        model: in the mode in which it will run; dropout must be off.
        example_inputs: positional arguments; only shapes and dtypes of tensors matter, other values become constants.
        kwargs: arguments by name.
        form: what the graph is for.

    Raises:
        UnavailableError: something cannot be captured; the line names the operator or the control flow.
    """
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    program = exported_program(model, given, kwargs or {})
    if any(_writes(node) for node in program.graph.nodes):
        with tracing_errors():
            program = program.run_decompositions({})
    return _graph_of(model, _without_composites(program), form)


def _graph_of(model: nn.Module, program: torch.export.ExportedProgram, form: GraphForm) -> CapturedModel:
    """The graph of an exported program, which must be functional."""
    outputs = list(_outputs(program))
    needed = {node.name for node in live_nodes(program.graph, [node for _, node in outputs])}
    nodes = {node.name: node for node in program.graph.nodes}
    inputs, lifted, weights = {}, {}, {}
    first = {id(value): name for name, value in (*model.named_parameters(), *model.named_buffers())}
    for spec in program.graph_signature.input_specs:
        is_held = spec.kind is not InputKind.USER_INPUT
        if not isinstance(spec.arg, TensorArgument) or (spec.arg.name not in needed and is_held):
            continue
        value: Any = None
        if is_held:  # a weight, a buffer or a constant
            assert spec.target is not None
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if spec.kind is InputKind.CONSTANT_TENSOR:
            lifted[spec.arg.name] = value
            continue
        if spec.kind not in PREFIXES:
            raise UnavailableError(f"{spec.arg.name} cannot be captured: it is no tensor")
        stem, role = PREFIXES[spec.kind]
        name = stem + first.get(id(value), spec.target or spec.arg.name)
        inputs[spec.arg.name] = Input(name, role, spec_of(nodes[spec.arg.name].meta["val"]))
        if value is not None:
            weights[name] = to_tensor(value)
    graph, constants, modules = lower(program.graph_module, inputs, lifted, outputs, exported_module, form)
    return CapturedModel(graph, constants, dict(sorted(weights.items())), modules)


def _without_composites(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with operators such as `einsum`, which graphs do not have, in the parts that PyTorch runs for them.

    They are composite in PyTorch too, so the parts give their bits.
    """
    known, grouped = torch.export.default_decompositions(), grouped_decompositions()
    while composites := {n.target for n in program.graph.nodes if n.target in grouped or _is_composite(n, known)}:
        with tracing_errors():
            program = program.run_decompositions({each: grouped.get(each) or known[each] for each in composites})
    return program


def _is_composite(node: fx.Node, known: Any) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if node.target not in known or only_moves_bytes(node):
        return False
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), COMPOSITE)  # type: ignore[no-untyped-call]
    return is_composite and operator_name(node.target, bound_arguments(node)) not in OPERATORS


def _writes(node: fx.Node) -> bool:
    """Whether a node writes into an operand, whether its schema declares it or not."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    hidden = str(node.target) == "aten.batch_norm.default" and bool(bound_arguments(node)["training"])
    return node.target._schema.is_mutable or hidden


def _outputs(program: torch.export.ExportedProgram) -> Iterator[tuple[str, fx.Node]]:
    """The results by name; a buffer that the program writes keeps its own name."""
    nodes = {node.name: node for node in program.graph.nodes}
    names = iter(_result_names(program))
    for spec in program.graph_signature.output_specs:
        if spec.kind not in OUTPUTS:
            raise UnavailableError(f"{spec.arg.name} cannot be captured: the model writes into its arguments")
        name = f"buffers.{spec.target}" if spec.kind is OutputKind.BUFFER_MUTATION else f"outputs.{next(names)}"
        if isinstance(spec.arg, TensorArgument):
            yield name, nodes[spec.arg.name]


def _result_names(program: torch.export.ExportedProgram) -> list[str]:
    """The path of every result in the model's return value: field names, keys and positions, joined by dots."""
    tree = program.call_spec.out_spec
    assert tree is not None
    numbered = list(range(tree.num_leaves))
    paths = list(_paths(pytree.tree_unflatten(numbered, tree), ()))
    in_order = [leaf for _, leaf in paths] == numbered
    return [".".join(path) or "0" for path, _ in paths] if in_order else [str(number) for number in numbered]


def _paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The leaves of a model's return value, each with its path of fields, keys and positions."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        names = getattr(value, "_fields", range(len(value)))
        for name, item in zip(names, value, strict=True):
            yield from _paths(item, (*path, str(name)))
    elif is_dataclass(value):
        for part in fields(value):
            yield from _paths(getattr(value, part.name), (*path, part.name))
    elif value is not None:
        yield path, value


# Captures a model for a range of sizes: a template whose sizes are polynomials of named dimensions.
#
# The model is captured at neighbouring sizes of every dimension. Integers that differ between these graphs become
# polynomials of at most first degree in each dimension, computed from the differences. Two further captures at other
# sizes must agree. Anything else that depends on a size is refused.

Sizes: TypeAlias = Mapping[str, int]
Corner: TypeAlias = tuple[int, ...]
DIMENSIONS_MAX: Final = 3


def capture_template(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    dynamic: Mapping[str, Mapping[int, str]],
    ranges: Mapping[str, tuple[int, int]],
) -> Template:
    """The graphs of `model` for every size in `ranges`, as one template.

    Args:
        model: as for `capture`.
        kwargs: example inputs by name.
        dynamic: the dimension of each dynamic axis, by input: `{"input_ids": {0: "batch", 1: "length"}}`.
        ranges: the smallest and the largest size of each dimension; at least 4 sizes apart.

    Raises:
        UsageError: a dimension without a range, or too small a range.
        UnavailableError: the model cannot be captured, or is another program at other sizes.
    """
    names = sorted({name for axes in dynamic.values() for name in axes.values()})
    if set(names) != ranges.keys() or not 0 < len(names) <= DIMENSIONS_MAX:
        raise UsageError(f"1 to {DIMENSIONS_MAX} dimensions with a range each are needed")
    narrow = [name for name in names if ranges[name][1] - max(ranges[name][0], 2) < DIMENSIONS_MAX]
    if narrow:
        raise UsageError(f"the range of {narrow[0]} is too small to be worth a name")

    def document(sizes: Sizes) -> Json:
        return decode(graph_bytes(capture(model, (), _resized(kwargs, dynamic, sizes)).graph), "graph")

    low = {name: max(ranges[name][0], 2) for name in names}  # PyTorch captures other graphs for sizes 0 and 1
    corners = list(itertools.product((0, 1), repeat=len(names)))
    seen = [document({name: low[name] + step for name, step in zip(names, corner, strict=True)}) for corner in corners]
    fitted = _merged(seen, lambda values: _polynomial(values, corners, names, [low[name] for name in names]))
    assert isinstance(fitted, dict)
    template = Template({name: ranges[name] for name in names}, fitted)
    _check_elsewhere(template, document, low)
    return template


def _check_elsewhere(template: Template, document: Callable[[Sizes], Json], low: Sizes) -> None:
    for places in (2, 3):
        sizes = {name: low[name] + places + index % 2 for index, name in enumerate(sorted(low))}
        sizes = {name: min(size, template.dimensions[name][1]) for name, size in sizes.items()}
        try:
            same = decode(graph_bytes(template.bind(**sizes)), "graph") == document(sizes)
        except TallyError as error:
            raise UnavailableError(f"the model is another program at {dict(sizes)}: {error}") from None
        if not same:
            raise UnavailableError(f"the model is another program at {dict(sizes)}")


def _resized(kwargs: Mapping[str, Any], dynamic: Mapping[str, Mapping[int, str]], sizes: Sizes) -> dict[str, Any]:
    resized = dict(kwargs)
    for name, axes in dynamic.items():
        shape = [sizes[axes[axis]] if axis in axes else side for axis, side in enumerate(kwargs[name].shape)]
        resized[name] = torch.ones(shape, dtype=kwargs[name].dtype)
    return resized


def _merged(values: Sequence[Json], fit: Callable[[Sequence[int]], str]) -> Json:
    """One document from several that differ only in integers; `fit` gives the formula for each such place."""
    first = values[0]
    if all(value == first for value in values):
        return first
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) == len(values) and all(each.keys() == objects[0].keys() for each in objects):
        return {key: _merged([each[key] for each in objects], fit) for key in objects[0]}
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) == len(values) and all(len(each) == len(lists[0]) for each in lists):
        return [_merged(parts, fit) for parts in zip(*lists, strict=True)]
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return fit(values)  # type: ignore[arg-type]
    raise UnavailableError(f"the model is another program at other sizes: {first!r:.60} there, and something else here")


def _polynomial(values: Sequence[int], corners: Sequence[Corner], names: Sequence[str], low: Sequence[int]) -> str:
    """The polynomial, of first degree in each name, that takes `values` at the corners of the cube at `low`."""
    at = dict(zip(corners, values, strict=True))
    terms: dict[Corner, int] = dict.fromkeys(corners, 0)
    for corner in corners:
        difference = sum((-1) ** (sum(corner) - sum(part)) * at[part] for part in _below(corner))
        for part in _below(corner):  # difference · Π (name − low) over the names of the corner
            rest = math.prod(-low[i] for i, (one, other) in enumerate(zip(corner, part, strict=True)) if one > other)
            terms[part] += difference * rest
    written = []
    for part, factor in reversed(terms.items()):
        powers = [name for name, bit in zip(names, part, strict=True) if bit]
        shown = [str(abs(factor))] if abs(factor) != 1 or not powers else []
        written += [("-" if factor < 0 else "+") + "*".join([*shown, *powers])] if factor else []
    return "".join(written).removeprefix("+") or "0"


def _below(corner: Corner) -> list[Corner]:
    return list(itertools.product(*(range(bit + 1) for bit in corner)))
