"""The first state of a run: that of the recipe's seed, or the weights that it is said to begin with."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.replay import judge_whole_state
from tallystick.audits.same_training import trained_by
from tallystick.core.tensors import State, Tensor, TensorSpec, in_dtype
from tallystick.formats.spec import Origin
from tallystick.programs.random_words import STATE_SIDE, seeded
from tallystick.programs.step_names import AVERAGE, AVERAGED, GENERATOR, POSITION, WEIGHTS, parameter_of
from tallystick.verdicts.exact import describe_difference, side_by_side
from tallystick.verdicts.first_weights import FirstWeights, compare_first_weights
from tallystick.verdicts.tolerance import Finding
from tallystick.verdicts.verdict import AGREES, DIFFERS, Findings

# Compares the first anchor with the state that the recipe's seed gives; that takes no training.
#
# Generators give the same words on every machine, and the normal numbers made of them differ by the rounding of a
# logarithm and a cosine; nothing else may differ.

FLOATS = ("F16", "BF16", "F32", "F64")
CUDA_GENERATORS = "rng.torch_cuda_"
FROM_ELSEWHERE = ("weights.", "buffers.")
INITIAL_ROUNDING = 2.0**-18
"""Of a tensor's largest value: 64 units of float32 roundoff."""


def judge_initial_state(
    notes: Findings, claimed: State, drawn: State, is_exact: bool, elsewhere: Collection[str] = ()
) -> None:
    """Compare the first anchor with the state that the verifier drew from the seed.

    The tensors that come from `elsewhere` are left out.
    """
    claimed, drawn = ({name: state[name] for name in state.keys() - set(elsewhere)} for state in (claimed, drawn))
    if is_exact:
        whole = Findings()
        judge_whole_state(whole, claimed, drawn, "step 0")
        for finding in whole.seen:
            notes.note(finding, "initial state")
        return
    for name in sorted(claimed.keys() | drawn.keys()):
        if not name.startswith(CUDA_GENERATORS):
            notes.note(_judge_tensor(claimed.get(name), drawn.get(name)), "initial state", f"step 0, {name}")


@dataclass(frozen=True)
class FirstState:
    """What is known of the first state: how its weights stand to an origin with which they agree, and what is left.

    `unexplained` names the tensors of a loop's first state, but weights, whose values nothing shows.
    """

    weights: FirstWeights | None = None
    unexplained: frozenset[str] = frozenset()


NOTHING_KNOWN: Final = FirstState()


def begun_elsewhere(evidence: CheckedRun, state: State, first: FirstState = NOTHING_KNOWN) -> frozenset[str]:
    """The tensors of the first state that the seed does not give, where the recipe begins with weights from elsewhere.

    Weights that were compared with an origin are known; otherwise any weight or buffer may be one of them.
    """
    recipe = evidence.spec.recipe
    if recipe is None or recipe.model.initial is None:
        return frozenset()
    if first.weights is not None:
        return frozenset(first.weights.places)
    return frozenset(name for name in state if name.startswith(FROM_ELSEWHERE))


def _judge_tensor(claimed: Tensor | None, drawn: Tensor | None) -> Finding:
    if claimed is None or drawn is None or (claimed.dtype, claimed.shape) != (drawn.dtype, drawn.shape):
        return DIFFERS
    if drawn.dtype not in FLOATS:
        return Finding(float(bytes(claimed.data) != bytes(drawn.data)), 0.0)
    scale = gap = 0.0
    for ours, theirs in side_by_side(drawn, claimed):
        scale, gap = np.max(np.abs(ours), initial=scale), np.max(np.abs(theirs - ours), initial=gap)
    return Finding(float(gap / scale) if scale else float(gap != 0), INITIAL_ROUNDING)


# Judges the first state of a loop, and whether a run begins with the weights of a directory that the verifier has.
#
# Weights alone do not say where a run begins: moments that were chosen put the weights anywhere after one step. So
# every tensor of anchor 0 is what the rule of the optimizer starts with, a copy of a weight, or part of the origin's
# last state; whatever is none of these is named.

SHOWN = 4
OPTIMIZER = "optimizer."
UNWEIGHTED = ("buffers.", GENERATOR)
"""What moves no weight by itself: buffers, and the generator of dropout."""


def judge_first_state(evidence: CheckedRun, origin: Origin | None, state: State) -> FirstState:
    """Judge the first anchor: its weights against the verifier's origin, and the rest of it against rule and origin.

    Other weights contradict only a spec that names this origin; otherwise the check stays open. So it does where a run
    begins with an origin's weights, and with a memory of the optimizer that is neither empty nor the origin's.
    """
    findings, loose = evidence.findings, frozenset[str]()
    if evidence.spec.recipe is None:
        loose = frozenset(unexplained(evidence, origin, state))
        memory = sorted(name for name in loose if not name.startswith(UNWEIGHTED))
        stored = sorted(loose - set(memory))
        if memory and origin is not None:
            given = f"neither what the optimizer starts with nor what {origin.path} ended with"
            mend = "give the run that ended with them as --initial"
            findings.leave_open("first state", f"{_some(memory)}: {given}; {mend}")
        elif memory:
            findings.not_checked.append(f"where the first values of {_some(memory)} come from, which no new run has")
        if stored and origin is not None:
            findings.not_checked.append(f"the first values of {_some(stored)}, which {origin.path} does not hold")
        elif stored:
            findings.not_checked.append(f"where the first values of {_some(stored)} come from, which no new run has")
    return FirstState(None if origin is None else _judge_weights(evidence, origin, state), loose)


def unexplained(evidence: CheckedRun, origin: Origin | None, state: State) -> Iterator[str]:
    """The tensors of the first state, but weights, that neither follow from the spec nor are those of the origin."""
    ended = {} if origin is None else dict(origin.rest)
    places = frozenset[str]() if origin is None else compare_first_weights(state, origin.weights).places.keys()
    for name, tensor in state.items():
        is_known = name.startswith(WEIGHTS) or name == POSITION or name in places
        if not is_known and not _is_fresh(evidence, name, tensor, state) and not _equal(ended.get(name), tensor):
            yield name


def _is_fresh(evidence: CheckedRun, name: str, tensor: Tensor, state: State) -> bool:
    """Whether a tensor is what it is at the start of a new run: an average is its weight, memory is empty."""
    if name.startswith(AVERAGE):
        return _equal(state.get(WEIGHTS + name.removeprefix(AVERAGE)), tensor)
    if name == GENERATOR:
        words = tensor.array()
        return words.shape == (STATE_SIDE,) and bool(np.array_equal(seeded(int(words[0])), words))
    if name == AVERAGED:
        return not np.any(tensor.array())
    weight = state.get(WEIGHTS + parameter_of(name)) if name.startswith(OPTIMIZER) else None
    if weight is None:
        return not np.any(tensor.array())
    slot, spec = name.rpartition(".")[2], TensorSpec.of(tensor)
    rules = evidence.spec.optimizer or ()
    starts = (rule.slots(TensorSpec.of(weight)).get(slot) for rule in rules)
    known = {start for start in starts if start is not None and start.spec == spec}
    return any(bool(np.all(tensor.values() == start.start)) for start in known)


def _equal(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and TensorSpec.of(one) == TensorSpec.of(other) and bytes(one.data) == bytes(other.data)


def _judge_weights(evidence: CheckedRun, origin: Origin, state: State) -> FirstWeights | None:
    """How the weights stand to the origin, where they agree with it."""
    findings, stated = evidence.findings, evidence.spec.first_weights
    compared = compare_first_weights(state, origin.weights)
    if compared.differing and stated == origin.digest:
        for place in compared.differing:
            wanted = in_dtype(compared.places[place], state[place].dtype)
            is_same_kind = wanted is not None and wanted.shape == state[place].shape
            detail = "another shape"
            if is_same_kind and wanted is not None:
                detail = describe_difference(state[place], wanted)
            findings.note(DIFFERS, "first weights", f"step 0, {place}", detail)
        return None
    if not compared.agrees:
        findings.leave_open("first weights", _why_open(compared, origin, stated))
        return None
    findings.note(AGREES, "first weights")
    findings.checked.append(f"the run begins with the weights of {origin.path}, {origin.digest}")
    if stated not in (None, origin.digest):
        findings.not_checked.append(
            f"whether the weights that the spec states, {stated}, are the same numbers in another precision"
        )
    if compared.added and evidence.spec.recipe is None:
        findings.not_checked.append(
            f"where the first values of {_some(compared.added)} come from, which {origin.path} does not hold"
        )
    for copy in _idle_copies(evidence, compared, origin, state):
        findings.leave_open("first weights", copy)
    return compared


def _idle_copies(evidence: CheckedRun, compared: FirstWeights, origin: Origin, state: State) -> Iterable[str]:
    """Tensors of the origin that no step reads, where others of their kind train in their place."""
    if evidence.program is None:
        return
    graph = evidence.program.graph
    read = {ref for node in graph.nodes for ref in node.refs}
    trained = trained_by(graph)
    newcomers = [name for name in compared.added if name.removeprefix(WEIGHTS) in trained]
    used = {id(compared.places[place]) for place in compared.places if place in read}
    idle = [place for place in compared.places if place not in read and id(compared.places[place]) not in used]
    for place in idle:
        kind = TensorSpec.of(state[place])
        alike = [name for name in newcomers if TensorSpec.of(state[name]) == kind]
        twin = None if any(_equal(state[name], state[place]) for name in alike) else next(iter(alike), None)
        if twin is not None:
            yield (
                f"no step reads {place} of {origin.path}, and {twin} trains, of the same shape, "
                "whose first values nothing shows: leave idle copies out of the model"
            )
            return


def _why_open(compared: FirstWeights, origin: Origin, stated: str | None) -> str:
    if compared.differing:
        states = "no origin" if stated is None else stated
        other = f"{origin.path}, {origin.digest}, holds other numbers in {_some(compared.differing)}"
        return f"{other}, and the spec states {states}: give the directory that the run began with"
    return f"the run holds nowhere {_some(compared.missing)} of {origin.path}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = " …" if len(listed) > SHOWN else ""
    return f"{len(listed)} tensor{'' if len(listed) == 1 else 's'} ({', '.join(listed[:SHOWN])}{more})"
