"""Turns a graph that gives logits into one that gives the token, so that the commitment covers the sampler too.

    (state', token) = graph(state, inputs)

The seed, I64[2], and the position, an I64, are inputs, so that one graph serves every position of every answer. With a
repetition penalty, the tokens seen so far are state that each step updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from tallystick.core.errors import MalformedError, UsageError
from tallystick.core.tensors import TensorSpec
from tallystick.programs.admission import DEFAULT, check_graph
from tallystick.programs.decoding import LOGITS, POSITION, SEED, SEEN, TOKEN
from tallystick.programs.graph import Graph, Input, Node, Output, Ref, Role, result_ref
from tallystick.programs.operators.definition import Attribute, operator
from tallystick.programs.operators.types import Types


def with_sampler(
    graph: Graph,
    logits: str = LOGITS,
    *,
    form: Literal["gumbel", "cdf"] = "gumbel",
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> Graph:
    """`graph` with an output `token`, computed from its output `logits`, floats [B, V] or [B, length, V].

    If a sequence has several rows, the last one is used. The token is I64 [B], or [B, 1], as the next step reads it.
    Added inputs: `sampler.seed` I64[2] and `sampler.position` I64[] unless the temperature is 0, and with a penalty
    `sampler.seen` BOOL [B, V] or [B, 1, V], which is also an output that includes the new token.

    Raises `UsageError` if the graph has no such output, and `MalformedError` for attributes outside their ranges and
    for names that are taken.
    """
    sampled = _Sampled(graph, _value_of(graph, logits))
    keys = sampled.keys(float(repetition_penalty), float(temperature))
    if temperature == 0.0:
        token = sampled.largest(keys)
    else:
        token = sampled.drawn(sampled.filtered(keys, top_k, float(top_p), float(min_p)), form)
    sampled.give(token, marks=repetition_penalty != 1.0)
    result = sampled.graph()
    check_graph(result, DEFAULT)
    return result


class _Sampled:
    """A graph to which nodes are appended."""

    def __init__(self, graph: Graph, logits: Ref) -> None:
        self._graph, self._specs = graph, graph.specs()
        self._nodes, self._inputs, self._outputs = list(graph.nodes), list(graph.inputs), list(graph.outputs)
        self._logits = self._last_row(logits)

    def graph(self) -> Graph:
        """The graph with the nodes added so far; inputs are sorted by name."""
        inputs = tuple(sorted(self._inputs, key=lambda each: each.name))
        return replace(self._graph, inputs=inputs, nodes=tuple(self._nodes), outputs=tuple(self._outputs))

    def keys(self, penalty: float, temperature: float) -> Ref:
        """The keys of the tokens, by penalty and temperature."""
        logits = self._logits
        if penalty != 1.0:
            self._take(SEEN, Role.BUFFER, TensorSpec("BOOL", self._specs[logits].shape))
            logits = self._add("tally.repetition_penalty", {"logits": logits, "seen": SEEN}, penalty=penalty)
        return self._add("tally.scale_logits", {"logits": logits}, temperature=temperature)

    def filtered(self, keys: Ref, top_k: int, top_p: float, min_p: float) -> Ref:
        """The keys that the filters leave, in this order."""
        if top_k != 0:
            keys = self._add("tally.keep_top_k", {"keys": keys}, k=top_k)
        if top_p != 1.0:
            keys = self._add("tally.keep_top_p", {"keys": keys}, p=top_p)
        return keys if min_p == 0.0 else self._add("tally.keep_min_p", {"keys": keys}, p=min_p)

    def give(self, token: Ref, marks: bool) -> None:
        """Make `token` an output, and with `marks` what was seen with it."""
        self._outputs.append(Output(TOKEN, token))
        if marks:
            self._outputs.append(Output(SEEN, self._add("tally.mark_token", {"seen": SEEN, "token": token})))

    def drawn(self, keys: Ref, form: str) -> Ref:
        self._take(SEED, Role.RNG, TensorSpec("I64", (2,)))
        self._take(POSITION, Role.INPUT, TensorSpec("I64", ()))
        place = {"seed": SEED, "position": POSITION}
        if form == "gumbel":
            return self.largest(self._add("tally.add_gumbel_noise", {"keys": keys, **place}))
        weights = self._add("tally.softmax_weights", {"keys": keys})
        return self._add(
            "tally.select_token", {"cumulative": self._add("tally.cumulative_weights", {"weights": weights}), **place}
        )

    def largest(self, keys: Ref) -> Ref:
        return self._add("tally.select_largest", {"keys": keys})

    def _last_row(self, logits: Ref) -> Ref:
        shape = self._specs[logits].shape
        if len(shape) != 3 or shape[1] <= 1:
            return logits
        if self._graph.dialect == "aten":
            return self._add("aten.slice.Tensor", {"self": logits}, dim=1, start=shape[1] - 1, end=shape[1], step=1)
        starts = (0, shape[1] - 1, 0)
        return self._add(
            "stablehlo.slice", {"operand": logits}, start_indices=starts, limit_indices=shape, strides=(1, 1, 1)
        )

    def _take(self, name: str, role: Role, spec: TensorSpec) -> None:
        self._inputs.append(Input(name, role, spec))
        self._specs[name] = spec

    def _add(self, name: str, operands: Mapping[str, Ref], **attributes: Attribute) -> Ref:
        number = self._nodes[-1].number + 1 if self._nodes else 0
        arguments = {each: self._specs[ref] for each, ref in operands.items()}
        (spec,) = operator(name).read(Types(), {**arguments, **attributes})
        self._nodes.append(Node(number, name, dict(operands), attributes, (spec,)))
        self._specs[result_ref(number, 0)] = spec
        return result_ref(number, 0)


def _value_of(graph: Graph, name: str) -> Ref:
    values = [output.value for output in graph.outputs if output.name == name]
    if not values:
        raise UsageError(f"the graph has no output {name[:80]!r}")
    if len(graph.specs()[values[0]].shape) not in {2, 3}:
        raise MalformedError(f"{name[:80]}: {graph.specs()[values[0]]}, not logits [B, V] or [B, length, V]")
    return values[0]
