"""A verdict with everything a reader needs to judge it or to repeat it, also where a run was not read or replayed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tallystick.audits.checked_run import CheckedRun
from tallystick.audits.data import shards_derived
from tallystick.audits.first_state import FirstState
from tallystick.audits.policy import AuditPlan, Policy, Selection, detection_probability, unreachable_share
from tallystick.audits.replay import SegmentReport, UnreplayedSteps
from tallystick.audits.varying_steps import described_moves
from tallystick.core.canonical_json import Json
from tallystick.core.digests import Digest, digest
from tallystick.core.errors import UnavailableError
from tallystick.formats.store.run import RunDirectory
from tallystick.verdicts.verdict import ZERO_SIGNS, Findings, Verdict, VerdictCoverage, number

CLOCK_LEAST = 1e-6
"""Seconds: the resolution of a timeline."""

UNREAD_SHOWN = 6
LINES_SHOWN = 6
BAD_SHARES = (0.01, 0.05, 0.1)
CLOSELY = {"exact": "bit for bit", "tolerant": "within the limits"}


@dataclass(frozen=True)
class Report:
    """A verdict with everything a reader needs to judge or to repeat it; no claim where there is no such file.

    The report on calls of a model has nothing more, and `graph` is theirs; a training adds its segments.
    """

    verdict: Verdict
    claim: Digest | None
    plan: AuditPlan
    graph: Digest | None = None
    reading_seconds: float = 0.0
    replay_seconds: float = 0.0

    @property
    def policy(self) -> Policy:
        """What the verifier demanded."""
        return self.plan.policy

    @property
    def nonce(self) -> bytes:
        """What drew the sample; empty if somebody chose what is replayed."""
        return self.plan.nonce

    @property
    def replayed_calls(self) -> tuple[int, ...]:
        """The calls of a model that were replayed: the first ones of the sample, up to one that could not be."""
        coverage = self.verdict.coverage
        return self.plan.selection.sampled[: coverage.done] if coverage is not None else ()

    def to_json(self) -> dict[str, Json]:
        """The report as JSON values."""
        return {
            **self._common(),
            "graph": None if self.graph is None else str(self.graph),
            "calls": 0 if self.verdict.coverage is None else self.verdict.coverage.total,
            "replayed_calls": list(self.replayed_calls),
        }

    def _common(self) -> dict[str, Json]:
        return {
            **self.verdict.to_json(),
            "claim": None if self.claim is None else str(self.claim),
            "policy": self.policy.to_json(),
            "nonce": self.nonce.hex(),
            "reading_seconds": round(self.reading_seconds, 3),
            "replay_seconds": round(self.replay_seconds, 3),
        }


@dataclass(frozen=True)
class TrainingReport(Report):
    """A report on a training run, or on a segment of one.

    `unreachable` is the share of steps that no audit with this window can replay. `graphs` are the step graphs of a run
    that has several, and `None` for steps without one, each with its number of steps.
    """

    segments: tuple[SegmentReport, ...] = ()
    steps: int = 0
    unreachable: float = 0.0
    training_seconds: float = 0.0
    graphs: tuple[tuple[Digest | None, int], ...] = ()

    @property
    def selection(self) -> Selection:
        """What was replayed, and what was drawn."""
        return self.plan.selection

    @property
    def replayed(self) -> str:
        """What was replayed: a step graph by its root, the recipe with a trainer, or nothing."""
        if not self.segments:
            return "nothing"
        return "the recipe" if self.graph is None else f"graph {self.graph}"

    @property
    def replayed_steps(self) -> int:
        """How many steps were replayed."""
        return sum(report.segment.steps for report in self.segments)

    @property
    def audit_seconds(self) -> float:
        """What the audit took: reading and checking what was recorded, and replaying."""
        return self.reading_seconds + self.replay_seconds

    @property
    def cost_ratio(self) -> float | None:
        """Audit time over the training time that the prover's clock states, or `None` without a usable time."""
        if not CLOCK_LEAST <= self.training_seconds < math.inf:
            return None
        return self.audit_seconds / self.training_seconds

    def detection(self) -> dict[str, float]:
        """Chance that a step was replayed that is bad, by the share of bad steps."""
        coverage = self.verdict.coverage
        assert coverage is not None  # given by `make_report`
        seen = self.steps if coverage.done == self.steps else coverage.drawn or 0
        return {f"{share:g}": detection_probability(self.steps, seen, share) for share in BAD_SHARES}

    def to_json(self) -> dict[str, Json]:
        """The report as JSON values."""
        return {
            **self._common(),
            "steps": self.steps,
            "replayed": self.replayed,
            "step_graphs": [{"graph": root and str(root), "steps": steps} for root, steps in self.graphs],
            "sampled": list(self.selection.sampled),
            "replayed_steps": self.replayed_steps,
            "segments": [segment.to_json() for segment in self.segments],
            "unreachable_share": self.unreachable,
            "detection": dict(self.detection()),
            "training_seconds": number(round(self.training_seconds, 3)),
            "cost_ratio": None if self.cost_ratio is None else round(self.cost_ratio, 4),
        }


@dataclass(frozen=True)
class Examined:
    """What an audit of a run read and replayed, beside its findings.

    `read` are the anchors, `lost` the steps of selected segments that could not be replayed, `unavailable` what else
    could not be checked. `is_screened` says whether bounds on a step follow from all weights.
    """

    read: Collection[int]
    first: FirstState
    segments: tuple[SegmentReport, ...]
    lost: tuple[UnreplayedSteps, ...]
    graph: Digest | None
    is_screened: bool
    unavailable: tuple[str, ...]
    reading_seconds: float
    replay_seconds: float


def make_report(evidence: CheckedRun, plan: AuditPlan, examined: Examined) -> TrainingReport:
    """The report of an audit: what it checked, what it could not obtain, and what it did not check."""
    policy, sampled, records = plan.policy, plan.selection.sampled, evidence.records
    share = unreachable_share(evidence.anchors, evidence.steps, policy.window)
    drawn = [lost for lost in examined.lost if any(lost.start <= step <= lost.end for step in sampled)]
    others = [lost for lost in examined.lost if lost not in drawn]
    unavailable = (
        *_out_of_reach(plan, evidence),
        *map(str, drawn[:LINES_SHOWN]),
        *([f"{len(drawn) - LINES_SHOWN} more such segments"] if len(drawn) > LINES_SHOWN else []),
        *examined.unavailable,
        *evidence.findings.open_lines,
        *records.varying.unmet(policy),
    )
    verdict = Verdict(
        tuple(evidence.findings.seen),
        unavailable,
        (*map(str, others), *_not_checked(evidence, plan, examined, share)),
        tuple(_assumptions(evidence, plan, examined.graph)),
        _coverage(evidence.steps, plan, examined),
        (*evidence.findings.checked, *_of_a_recipe(evidence, policy)),
    )
    return TrainingReport(
        verdict,
        evidence.claim.identity,
        plan,
        examined.graph,
        examined.reading_seconds,
        examined.replay_seconds,
        examined.segments,
        evidence.steps,
        share,
        records.training_seconds,
        records.varying.graph_counts(evidence.spec.graph, evidence.steps),
    )


def _coverage(steps: int, plan: AuditPlan, examined: Examined) -> VerdictCoverage:
    """The replayed steps; a nonce drew the sampled ones, and without one somebody chose the segment."""
    replayed = [report.segment for report in examined.segments]
    drawn = sum(any(part.start < step <= part.end for part in replayed) for step in plan.selection.sampled)
    how = "replayed from the recipe" if examined.graph is None else "replayed from the step graph"
    done = sum(part.steps for part in replayed)
    return VerdictCoverage(done, steps, "steps", how, drawn if plan.nonce else 0, CLOSELY[plan.policy.mode])


def _of_a_recipe(evidence: CheckedRun, policy: Policy) -> Iterator[str]:
    """What a demand on loops means in a run by a recipe."""
    if evidence.spec.recipe is not None and (policy.one_graph or policy.one_rule or policy.scheduled_rates):
        yield "one step, one rule and a schedule of rates: a run by a recipe has its recipe's, so --strict adds nothing"


def _not_checked(evidence: CheckedRun, plan: AuditPlan, examined: Examined, share: float) -> Iterator[str]:
    """What was left out besides steps, of which the coverage says how many were replayed."""
    policy, varying, data = plan.policy, evidence.records.varying, evidence.spec.data
    if share:
        yield (
            f"{100 * share:.1f} % of the steps lie out of reach of every audit with a window of {policy.window}: "
            "the anchor stride exceeds it"
        )
    yield from _unread(evidence, examined.read)
    if policy.graphs and evidence.spec.recipe is not None:
        yield "the graphs approved with --graph: a run by a recipe has the step of its recipe, and no further one"
    if evidence.claim.weights is None:
        yield "the claim names no weights: which weights were published, nothing ties to this run"
    if without := varying.steps_without_graph:
        yield f"{without} of {evidence.steps} steps, which have no step graph: nobody can replay them"
    for part in evidence.claim.withdrawn or ():
        yield f"steps {part.first}–{part.last}, whose step graph the recorder withdrew: {part.reason}"
    if varying.settings:
        yield varying.changed_settings(evidence)
    if policy.mode == "tolerant":
        yield ZERO_SIGNS
    if not examined.is_screened:
        yield "how far weights in F16 moved between anchors: no bound on a step follows from their moments"
    if policy.replay == "recipe" and evidence.spec.recipe is not None and evidence.spec.graph is not None:
        yield "what the step graph computes: its bytes are those that the spec names, and the recipe was replayed"
    if evidence.spec.recipe is None and evidence.program is not None:
        is_stated = examined.first.weights is not None or evidence.spec.initial is not None
        origin = "" if is_stated else "where the first state came from, "
        batches = "" if evidence.spec.rows is not None else "which data the batches are, and "
        rates = varying.stated_rates()
        yield f"{origin}{batches}what set the learning rates{rates and f' ({rates})'}"
    if evidence.records.moves:
        yield f"what chose the random numbers of dropout: {described_moves(evidence.records.moves)}"
    yield from _unstated_origin(evidence, plan, examined.first)
    yield from evidence.findings.not_checked
    if data is not None and data.kind == "corpus":
        yield from _not_derived(evidence, policy)
    elif not policy.full and data is not None:
        recipe = evidence.spec.recipe
        is_trained = recipe is not None and recipe.tokenizer.kind == "bpe"
        derived = "tokenizer and the tokens are those" if is_trained else "tokens are those"
        yield f"whether the {derived} of the source: `tally verify-data`, or --full"
    if evidence.records.failures:
        yield f"{evidence.records.failures} steps crashed and were repeated; the crashes themselves were not replayed"
    yield unsigned(policy)
    yield "whether other data was used elsewhere, before step 0 or after the last step"


def _unstated_origin(evidence: CheckedRun, plan: AuditPlan, first: FirstState) -> Iterator[str]:
    stated = evidence.spec.first_weights
    is_open = any(line.check == "first weights" for line in evidence.findings.undecided)
    if stated is not None and first.weights is None and not is_open:
        which = f"the weights that its spec states, {stated}"
        known = "give their directory with --initial"
        if plan.begins:
            known = f"the segment begins at the anchor of step {plan.begins}, and only that of step 0 shows it"
        yield f"whether the run begins with {which}: {known}"


def _not_derived(evidence: CheckedRun, policy: Policy) -> Iterator[str]:
    assert evidence.spec.data is not None  # tokens of a corpus
    done, shards = shards_derived(evidence), evidence.spec.data.source.count
    if not done and not policy.full:
        yield "whether the tokens are those of the corpus: give its directory with --corpus"
    elif done and done < shards:
        yield f"whether the tokens of {shards - done} of {shards} shards are those of the corpus: --shards, or --full"


def _unread(evidence: CheckedRun, read: Collection[int]) -> Iterator[str]:
    """Which anchors no replayed segment needed, and what is not known without them."""
    left, last = sorted(evidence.anchors.keys() - set(read)), evidence.records.last_anchor
    if left:
        after = ", ".join(str(mark) for mark in left[:UNREAD_SHOWN]) + (" …" if len(left) > UNREAD_SHOWN else "")
        which = f"{len(left)} of {len(evidence.anchors)} anchors (after step {after})"
        yield f"{which}: no replayed segment starts or ends there"
    if 0 not in read and evidence.spec.recipe is not None and evidence.spec.first_weights is None:
        yield "whether the first state is the one that the seed gives"
    if last is not None and last.index not in read and evidence.claim.weights is not None:
        yield "whether the weights that the claim names are those of the last anchor"


def claim_named(claim: Digest | None) -> str:
    """The claim of a report in words."""
    return "no claim" if claim is None else f"claim {claim}"


def unsigned(policy: Policy) -> str:
    """What is not known about whoever made a claim, as long as claims carry no signature."""
    if policy.claim is None:
        return "who made the claim, and whether it is the one that was published: give its digest with --claim"
    return "who made the claim and when: it carries no signature yet"


def _assumptions(evidence: CheckedRun, plan: AuditPlan, graph: Digest | None) -> Iterator[str]:
    yield "SHA-256 is collision resistant, and this machine and its libraries compute what they say"
    if plan.nonce:
        yield "the nonce was drawn by the verifier after the claim was fixed"
    if graph is not None and evidence.spec.recipe is None:
        more = evidence.records.varying.further_graphs
        several = f" and {more} more that records name" if more else ""
        yield f"the program that should have run is the graph that was replayed, {graph}{several}"
    if plan.policy.mode == "tolerant":
        yield "honest stacks differ by no more than those the limits were calibrated on"
    if plan.policy.tolerance is not None:
        yield f"states agree where the policy's tolerance says so, which is {plan.policy.tolerance}"
    yield "training seconds are the prover's statement; only the cost ratio uses them"


def report_unread(run: RunDirectory, policy: Policy, findings: Findings) -> TrainingReport:
    """The report on a run of which `read_stated` could not read all; `findings` say why, and nothing else counts."""
    verdict = Verdict(
        tuple(findings.seen),
        tuple(findings.open_lines),
        ("data, records, anchors and steps: without claim, spec and environment they say nothing",),
        coverage=VerdictCoverage(0, 0, "steps", "replayed"),
    )
    try:
        claim = digest("claim", run.claim_bytes())  # of these bytes, whatever they say
    except UnavailableError:
        claim = None
    return TrainingReport(verdict, claim, AuditPlan(policy))


def _out_of_reach(plan: AuditPlan, evidence: CheckedRun) -> Iterator[str]:
    """Which of the sampled steps were not selected, and why."""
    selection, policy = plan.selection, plan.policy
    if not selection.sampled:
        yield "no step could be sampled"
    lost = selection.out_of_reach
    if not lost:
        return
    marks = evidence.run.anchors.present(evidence.anchors)
    steps, behind = ", ".join(str(step) for step in lost[:8]), [bisect_left(marks, step) for step in lost]
    which = f"{len(lost)} of {len(selection.sampled)} sampled steps"
    if not all(behind):
        yield f"{which} cannot be replayed (step {steps}): no anchor before them is there"
        return
    needed = max(step - marks[place - 1] for step, place in zip(lost, behind, strict=True))
    yield (
        f"{which} lie more than {policy.window} steps behind their anchor (step {steps}): "
        f"--window {needed} reaches them"
    )
