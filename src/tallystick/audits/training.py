"""The audit of a training run: recheck, sample, replay, compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tallystick.audits.calibration import shipped_calibration
from tallystick.audits.checked_run import CheckedRun, gather_evidence
from tallystick.audits.initial import judge_initial_state
from tallystick.audits.policy import Policy
from tallystick.audits.replay import SegmentReport, replay_segment
from tallystick.audits.report import Report, make_report
from tallystick.audits.sampling import (
    Segment,
    Selection,
    sample_steps,
    select_segments,
)
from tallystick.audits.screens import screen_anchors
from tallystick.audits.tolerant import TolerantJudge
from tallystick.audits.training_kind import workload_of
from tallystick.commitments.digests import Digest
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.preparation import TrainBpe
from tallystick.datasets.samples import Dataset
from tallystick.datasets.verify import BpeTraining, verify_data, verify_tokenizer
from tallystick.errors import ProofError, UnavailableError, UsageError
from tallystick.judging.findings import DIFFERS, require
from tallystick.store.run import RunDirectory
from tallystick.tensors.safetensors import StateFile
from tallystick.tolerances.streams import element_count
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.spec import Spec
from tallystick.workloads.program import StepProgram
from tallystick.workloads.replayer import Replayer

if TYPE_CHECKING:
    from tallystick.tolerances.registry import NamedTolerance

MakeReplayer = Callable[[Spec, Dataset, BatchPlan], Replayer]
MakeGraphReplayer = Callable[[Spec, StepProgram], Replayer]
CaptureRecipe = Callable[[Spec], Digest]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class VerifierStack:
    """The verifier's own machine: its environment and how it builds a replayer.

    `graph_replayer` replays from a step graph; `recipe_graph` captures the step of a recipe anew and gives its root;
    `train_bpe` trains a tokenizer anew.
    """

    environment: Environment
    replayer: MakeReplayer
    graph_replayer: MakeGraphReplayer | None = None
    recipe_graph: CaptureRecipe | None = None
    train_bpe: TrainBpe | None = None


def audit_training(
    run: RunDirectory,
    policy: Policy,
    nonce: bytes,
    workplace: VerifierStack,
    progress: Progress = lambda *_: None,
) -> Report:
    """Audit a finished run under `policy` with a nonce drawn after its claim.

    Raises:
        MalformedError: a file of the run is not what it should be.
        UnavailableError: a file is missing or larger than the policy allows.
    """
    started = time.perf_counter()
    evidence = gather_evidence(run, policy)
    select = every_segment if policy.full else sampled_segments
    return _audit(evidence, policy, nonce, workplace, progress, select(evidence, policy, nonce), started)


def verify_segment(
    run: RunDirectory,
    policy: Policy,
    start: int,
    end: int,
    workplace: VerifierStack,
    progress: Progress = lambda *_: None,
) -> Report:
    """Replay the segment between two anchors and ask for equality of every bit of the state.

    Raises what `audit_training` raises, and `UsageError` where `start` or `end` is no anchor.
    """
    started = time.perf_counter()
    evidence = gather_evidence(run, policy)
    marks = sorted(evidence.anchors)
    if evidence.findings.rejected:
        return _audit(evidence, policy, b"", workplace, progress, Selection((), (), ()), started)
    if start not in marks or end not in marks or start >= end:
        near = ", ".join(str(mark) for mark in marks[:12])
        raise UsageError(f"--from {start} --to {end}: two anchors in ascending order are needed ({near} …)")
    chosen = Selection(tuple(range(start + 1, end + 1)), tuple(_between(marks, start, end)), ())
    return _audit(evidence, policy, b"", workplace, progress, chosen, started)


def sampled_segments(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The segments that cover the sampled steps, as far as the window reaches."""
    if not evidence.steps or len(evidence.anchors) < 2:
        return Selection((), (), ())
    sampled = sample_steps(nonce, evidence.claim.identity, evidence.steps, policy.samples)
    reached = max(evidence.anchors)
    return select_segments((step for step in sampled if step <= reached), evidence.anchors, policy.window)


def every_segment(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The whole chain, anchor to anchor."""
    marks = sorted(evidence.anchors)
    if not evidence.steps or len(marks) < 2:
        return Selection((), (), ())
    return Selection(tuple(range(1, evidence.steps + 1)), tuple(_between(marks, marks[0], marks[-1])), ())


def _between(marks: list[int], start: int, end: int) -> Iterable[Segment]:
    inside = [mark for mark in marks if start <= mark <= end]
    return (Segment(a, b, True) for a, b in pairwise(inside))


def _audit(
    evidence: CheckedRun,
    policy: Policy,
    nonce: bytes,
    workplace: VerifierStack,
    progress: Progress,
    selection: Selection,
    started: float,
) -> Report:
    hangs_together = not evidence.findings.rejected
    screen_anchors(evidence)
    unavailable = list(_out_of_reach(selection, policy))
    if policy.full:
        unavailable.extend(_derive_data(evidence, workplace))
    segments: list[SegmentReport] = []
    try:
        if hangs_together:  # otherwise there is nothing to replay against
            segments.extend(_replay(evidence, policy, workplace, progress, selection))
    except UnavailableError as error:
        unavailable.append(str(error))
    unavailable += evidence.findings.undecided
    seconds = time.perf_counter() - started
    graph = evidence.spec.graph if segments and replays_graph(evidence, policy, workplace) else None
    return make_report(evidence, policy, nonce, selection, segments, unavailable, seconds, graph)


def _replay(
    evidence: CheckedRun, policy: Policy, workplace: VerifierStack, progress: Progress, selection: Selection
) -> Iterable[SegmentReport]:
    """Replay the selected segments; raises `UnavailableError` saying why that is not possible."""
    replayer = _replayer(evidence, policy, workplace)
    if evidence.spec.recipe is not None:
        is_exact = policy.mode == "exact"
        judge_initial_state(evidence.findings, evidence.state(0), replayer.initial_state(), is_exact=is_exact)
    total, done = sum(segment.steps for segment in selection.segments), 0
    for segment in selection.segments:
        judge = _judge(evidence, policy, workplace, segment)
        try:
            yield replay_segment(evidence, segment, replayer, judge)
        except ProofError as error:  # a batch that is not the recorded one
            evidence.findings.note(DIFFERS, "batch", f"steps {segment.start + 1}–{segment.end}", str(error))
        done += segment.steps
        progress(done, total)


def _replayer(evidence: CheckedRun, policy: Policy, workplace: VerifierStack) -> Replayer:
    spec, device = evidence.spec, _device(evidence)
    if spec.recipe is None and evidence.claim.no_graph is not None:
        raise UnavailableError(f"no step was replayed: the recorder withdrew the step graph, {evidence.claim.no_graph}")
    if spec.recipe is None and evidence.program is None:
        raise UnavailableError("no step was replayed: the run was recorded around a loop that no recipe describes")
    if device not in policy.devices:
        raise UnavailableError(f"the policy accepts no run on {device}")
    differences = workplace.environment.differences(evidence.environment)
    if policy.mode == "exact" and differences:
        raise UnavailableError("different stack, ours / theirs: " + "; ".join(differences))
    if replays_graph(evidence, policy, workplace):
        return _graph_replayer(evidence, workplace)
    if evidence.dataset is None or evidence.plan is None:
        raise UnavailableError("no step was replayed: this verifier replays recipes, and the run has a graph only")
    return workplace.replayer(spec, evidence.dataset, evidence.plan)


def replays_graph(evidence: CheckedRun, policy: Policy, workplace: VerifierStack) -> bool:
    """Whether steps are taken again with the run's step graph rather than with a trainer built from its recipe."""
    is_wanted = policy.replay == "graph" or evidence.spec.recipe is None
    return is_wanted and evidence.program is not None and workplace.graph_replayer is not None


def _graph_replayer(evidence: CheckedRun, workplace: VerifierStack) -> Replayer:
    assert evidence.program is not None  # held by `replays_graph`
    assert workplace.graph_replayer is not None
    if evidence.spec.recipe is not None:
        _check_recipe_graph(evidence, workplace)
    return workplace.graph_replayer(evidence.spec, evidence.program)


def _check_recipe_graph(evidence: CheckedRun, workplace: VerifierStack) -> None:
    """That the spec names both shows nothing: the recipe's step is captured anew with the verifier's own libraries."""
    if workplace.recipe_graph is None:
        raise UnavailableError("whether the step graph is that of the recipe: nothing here can capture it")
    captured = workplace.recipe_graph(evidence.spec)
    others = [line for line in workplace.environment.differences(evidence.environment) if line.startswith(CAPTURING)]
    if captured != evidence.spec.graph and others:
        raise UnavailableError(
            f"these libraries capture another graph from the recipe ({others[0]}); replay the recipe"
        )
    with evidence.findings.check("step graph of the recipe"):
        require(captured == evidence.spec.graph, f"the step of the recipe is the graph {captured}, not the one claimed")


CAPTURING = ("torch:", "transformers:")
"""The libraries whose version decides which graph a recipe gives."""


def _device(evidence: CheckedRun) -> str:
    recipe = evidence.spec.recipe
    return evidence.environment.device if recipe is None else recipe.training.device


def _judge(evidence: CheckedRun, policy: Policy, workplace: VerifierStack, segment: Segment) -> TolerantJudge | None:
    if policy.mode == "exact":
        return None
    workload = workload_of(evidence)
    table = policy.calibration or shipped_calibration()
    entry = table.entry_at((workload.family, workload.optimizer, workload.dtype), segment.start, segment.steps)
    if entry is None:
        what = f"{workload.optimizer} in {workload.dtype} over {segment.steps} steps"
        raise UnavailableError(f"no limits are calibrated for {what}; steps {segment.start + 1}–{segment.end} are open")
    same_device = workplace.environment.device == evidence.environment.device == "cpu"
    parameters = _parameters(evidence, segment.start)
    named = None if policy.tolerance is None else _named_tolerance(policy.tolerance)
    floor = policy.update_floor
    return TolerantJudge(evidence.run, evidence.spec, workload, entry, floor, same_device, parameters, named)


def _named_tolerance(name: str) -> NamedTolerance:
    from tallystick.tolerances.registry import NamedTolerance

    return NamedTolerance.load(name)


def _parameters(evidence: CheckedRun, anchor: int) -> int:
    """The number of weights in an anchor, from the head of its file."""
    with StateFile(evidence.run.path / evidence.anchors[anchor].file, canonical=True) as file:
        return element_count(file.tensor(name) for name in file.names if name.startswith("weights."))


def _derive_data(evidence: CheckedRun, workplace: VerifierStack) -> Iterable[str]:
    """Train the tokenizer and tokenize the source again, and say what of it cannot be done here.

    The digests of source, tokenizer and tokens do not show that one comes from the other.
    """
    commitment = evidence.spec.data
    if commitment is None or commitment.tokens is None or evidence.dataset is None:
        return
    with evidence.findings.check("tokens of the source"):
        verify_data(evidence.run.data_path, commitment)
    try:
        _train_tokenizer(evidence, commitment, workplace)
    except UnavailableError as error:
        yield f"whether the tokenizer was trained on the source: {error}"


def _train_tokenizer(evidence: CheckedRun, commitment: DatasetCommitment, workplace: VerifierStack) -> None:
    recipe = evidence.spec.recipe
    assert recipe is not None  # only a recipe has data
    if recipe.tokenizer.kind == "bytes":
        return  # that it is one of single bytes was seen with the data
    if workplace.train_bpe is None:
        raise UnavailableError("nothing here trains one")
    ours, theirs = (place.package("tokenizers") for place in (workplace.environment, evidence.environment))
    training = BpeTraining(workplace.train_bpe, ours, theirs)
    with evidence.findings.check("tokenizer of the source"):
        verify_tokenizer(evidence.run.data_path, commitment, "bpe", recipe.tokenizer.vocabulary, training)


def _out_of_reach(selection: Selection, policy: Policy) -> Iterable[str]:
    if not selection.sampled:
        yield "no step could be sampled"
    if selection.out_of_reach:
        steps = ", ".join(str(step) for step in selection.out_of_reach[:8])
        yield (
            f"{len(selection.out_of_reach)} of {len(selection.sampled)} sampled steps lie more than "
            f"{policy.window} steps behind their anchor (step {steps})"
        )
