"""The audit of a training run: check, derive the data, sample, screen, replay, compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise

from tallystick.audits.checked_run import CheckedRun, check_records, read_stated, walk_anchors
from tallystick.audits.first_state import judge_first_state
from tallystick.audits.policy import AuditPlan, Policy, Segment, Selection, sample_steps, select_segments
from tallystick.audits.replay import SegmentReport, UnreplayedSteps
from tallystick.audits.report import Report, make_report, report_unread, unreplayed
from tallystick.audits.screens import AnchorScreens
from tallystick.audits.segments import SegmentReplays, check_end, replays_graph
from tallystick.core.canonical_json import encode
from tallystick.core.digests import digest, digest_bytes
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.tensors import State
from tallystick.formats.data.preparation import CorpusCheck, LibraryVersions, verify_data, verify_tokenizer
from tallystick.formats.data.rows import CommittedRows, leaves_of_batch, read_rows
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.random_words import sample
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.replayer import VerifierStack
from tallystick.verdicts.verdict import AGREES, DIFFERS, Findings, require

# Derives the tokens of sampled shards again from the verifier's own copy of a corpus.

CHECK = "tokens of the corpus"


def derive_corpus(evidence: CheckedRun, policy: Policy, nonce: bytes, stack: VerifierStack) -> Iterable[str]:
    """Hash and tokenize the sampled shards again into the findings; yields what cannot be done here."""
    commitment, recipe = evidence.spec.data, evidence.spec.recipe
    assert commitment is not None
    assert recipe is not None  # only a recipe has data
    if stack.corpus is None or stack.read_encoder is None:
        yield "whether the tokens are those of the corpus: give its directory with --corpus"
        return
    ours, theirs = (each.package("tokenizers") for each in (stack.environment, evidence.environment))
    versions = LibraryVersions(ours, theirs)
    with evidence.findings.check(CHECK):
        check = CorpusCheck.open(evidence.run.data_path, stack.corpus, commitment, recipe, stack.read_encoder, versions)
        shards = check.corpus.shards
        chosen = range(len(shards)) if policy.full else sample_shards(evidence, nonce, len(shards), policy.shards)
        for index in chosen:
            with evidence.findings.check(CHECK, f"shard {index}"):
                check.check([index])
        evidence.derived = len(chosen), len(shards)


def sample_shards(evidence: CheckedRun, nonce: bytes, shards: int, count: int) -> tuple[int, ...]:
    """`count` distinct shards, in ascending order, uniformly distributed to anyone without the nonce."""
    name = encode({"claim": str(evidence.claim.identity), "nonce": nonce.hex(), "of": "shards"})
    return tuple(int(each) for each in sample(digest_bytes(digest("sample", name)), shards, min(count, shards)))


# Derives tokenizer and tokens again from the committed source, for a full audit.
#
# The digests of source, tokenizer and tokens do not show that one comes from the other.


def derive_data(evidence: CheckedRun, policy: Policy, nonce: bytes, stack: VerifierStack) -> Iterable[str]:
    """Derive tokens and tokenizer again into the findings, as far as the policy asks; yields what cannot be done here.

    A full audit derives all of them. Of a corpus that the verifier has, any audit derives some shards.
    """
    commitment = evidence.spec.data
    if commitment is None or commitment.tokens is None or evidence.dataset is None:
        return
    if commitment.kind == "corpus":
        if policy.full or stack.corpus is not None:
            yield from derive_corpus(evidence, policy, nonce, stack)
    elif policy.full:
        yield from _derive_source(evidence, commitment, stack)


def _derive_source(evidence: CheckedRun, commitment: DatasetCommitment, stack: VerifierStack) -> Iterable[str]:
    recipe = evidence.spec.recipe
    with evidence.findings.check("tokens of the source"):
        verify_data(evidence.run.data_path, commitment)
    assert recipe is not None  # only a recipe has data
    if recipe.tokenizer.kind == "bytes":
        return  # its kind was checked when the data was opened
    if stack.train_bpe is None:
        yield "whether the tokenizer was trained on the source: nothing here trains one"
        return
    ours, theirs = (each.package("tokenizers") for each in (stack.environment, evidence.environment))
    versions = LibraryVersions(ours, theirs)
    with evidence.findings.check("tokenizer of the source"):
        verify_tokenizer(evidence.run.data_path, commitment, recipe.tokenizer, stack.train_bpe, versions)


# Compares the batches of replayed steps with the rows that a spec names, and rows with the corpus they are of.

ROWS_MAX = 64
"""How many rows of the replayed steps, drawn with the nonce, are rendered and tokenized again."""


def check_rows(
    evidence: CheckedRun, reports: Sequence[SegmentReport], nonce: bytes, stack: VerifierStack
) -> Iterable[str]:
    """Check the batches of the replayed steps into the findings; yields what stays open."""
    steps = [step for each in reports for step in range(each.segment.start + 1, each.segment.end + 1)]
    rows: CommittedRows | None = None
    with evidence.findings.check("rows"):
        rows = read_rows(evidence.run.data_path)
        require(rows.recipe.identity == evidence.spec.rows, "data/rows.json is not the rows recipe of the spec")
    if rows is None or not steps or evidence.findings.rejected:
        return
    unnamed = [step for step in steps if evidence.step(step).batch.indices is None]
    if unnamed:
        yield f"rows: the batches of {len(unnamed)} of {len(steps)} replayed steps name no rows (step {unnamed[0]})"
    named = [step for step in steps if step not in set(unnamed)]
    for step in named:
        with evidence.findings.check("rows", f"step {step}"):
            _check_step(evidence, rows, step)
    if evidence.findings.rejected or unnamed:
        return
    what = f"{len(steps):,} replayed batches are rows of {rows.recipe.identity}, of the corpus {rows.recipe.corpus}"
    evidence.findings.checked.append(f"data: the {what}")
    yield from _derive(evidence, rows, named, nonce, stack)


def _check_step(evidence: CheckedRun, rows: CommittedRows, step: int) -> None:
    batch: State = {name.removeprefix(BATCH): each for name, each in evidence.batch(step).items()}
    leaves, places = leaves_of_batch(batch, rows.recipe), evidence.step(step).batch.indices or ()
    require(leaves is not None and len(leaves) == len(places), f"the batch holds other tensors than {len(places)} rows")
    assert leaves is not None  # required above
    for place, leaf in zip(places, leaves, strict=True):
        is_there = place < len(rows.leaves) and rows.leaves[place] == leaf
        require(is_there, f"the batch is not row {place} of the corpus, which its record names")


def _derive(
    evidence: CheckedRun, rows: CommittedRows, steps: Sequence[int], nonce: bytes, stack: VerifierStack
) -> Iterable[str]:
    if stack.made_again is None:
        evidence.findings.not_checked.append(
            "whether the rows are those of the conversations: give the corpus with --corpus, and a directory with its "
            "tokenizer and chat template with --initial"
        )
        return
    named = sorted({place for step in steps for place in evidence.step(step).batch.indices or ()})
    drawn = sample_steps(nonce, evidence.claim.identity, len(named), ROWS_MAX)
    places = [named[number - 1] for number in drawn]
    ours, theirs = (each.package("tokenizers") for each in (stack.environment, evidence.environment))
    try:
        stack.made_again(rows, places)
    except (MalformedError, UnavailableError) as error:
        yield f"rows: {error}"
    except ProofError as error:
        if ours == theirs:
            evidence.findings.note(DIFFERS, "rows of the corpus", detail=str(error))
        else:
            yield f"rows: {error} with tokenizers {ours}; the run states {theirs}: install that one to decide"
    else:
        evidence.findings.note(AGREES, "rows of the corpus")
        evidence.findings.checked.append(
            f"data: {len(places):,} of {len(named):,} rows were made again from the conversations"
        )


# The audit of a training run: check, sample, screen, replay, compare.
#
# Anchors are read in order, each once. While a state is in memory its digest is checked, it is screened against the one
# before, and a sampled segment that ends there is replayed. A full audit reads all of them; another one reads those of
# its segments, and the two that say where the chain begins and ends.

Progress = Callable[[int, int], None]
"""Told how many steps were replayed, of how many."""


def audit_training(
    run: RunDirectory,
    policy: Policy,
    nonce: bytes,
    stack: VerifierStack,
    progress: Progress = lambda *_: None,
) -> Report:
    """Audit a finished run under `policy` with a nonce drawn after its claim.

    Whatever is wrong with the run is in the report: bytes that are not those that the claim names reject it; what is
    missing, cannot be read, exceeds the policy or is not understood here leaves the audit inconclusive.
    """
    started = time.perf_counter()
    findings = Findings(keeps_going=True)
    stated = read_stated(run, policy, findings)
    if stated is None:
        return report_unread(run, policy, findings)
    evidence = check_records(run, stated, policy, findings)
    select = every_segment if policy.full else sampled_segments
    selection, ends = select(evidence, policy, nonce), ends_of_chain(evidence, stack)
    _require_origin(evidence, stack)
    check_end(evidence, policy)
    return audit_selected(evidence, AuditPlan(policy, selection, nonce), stack, progress, started, ends)


def sampled_segments(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The segments that cover the sampled steps, between anchors that are there and as far as the window reaches."""
    if not evidence.steps or len(evidence.anchors) < 2:
        return Selection((), (), ())
    sampled = sample_steps(nonce, evidence.claim.identity, evidence.steps, policy.samples)
    reached, present = max(evidence.anchors), evidence.run.anchors.present(evidence.anchors)
    return select_segments((step for step in sampled if step <= reached), present, policy.window)


def every_segment(evidence: CheckedRun, policy: Policy, nonce: bytes) -> Selection:
    """The whole chain, anchor to anchor."""
    marks = sorted(evidence.anchors)
    if not evidence.steps or len(marks) < 2:
        return Selection((), (), ())
    return Selection(tuple(range(1, evidence.steps + 1)), tuple(segments_between(marks, marks[0], marks[-1])), ())


def segments_between(marks: list[int], start: int, end: int) -> Iterable[Segment]:
    """The segments from the anchor `start` to the anchor `end`."""
    inside = [mark for mark in marks if start <= mark <= end]
    return (Segment(a, b, True) for a, b in pairwise(inside))


def audit_selected(
    evidence: CheckedRun,
    plan: AuditPlan,
    stack: VerifierStack,
    progress: Progress,
    started: float,
    ends: Collection[int] = (),
) -> Report:
    """Screen the anchors of a run whose records were checked, replay what was selected, and report.

    Without `policy.full`, only the anchors of the selected segments are screened, and these and `ends` are read.
    `started` is when the audit began to read, on the clock of `time.perf_counter`.
    """
    policy, selection, nonce = plan.policy, plan.selection, plan.nonce
    unavailable, replaying = list[str](), 0.0
    screens = AnchorScreens(evidence, Findings())
    replays = SegmentReplays(evidence, policy, stack, progress, selection.segments)
    screened = set(evidence.anchors) if policy.full else selection.marks
    for mark, state in walk_anchors(evidence, policy, screened | (set(ends) & evidence.anchors.keys())):
        if not policy.full and mark not in selection.ends:
            screens.leave_out()
        if mark in screened:
            screens.follow(mark, state)
        if mark == 0 and state is not None:
            judge_first_state(evidence, stack.origin, state)
        began = time.perf_counter()
        replays.follow(mark, state)
        replaying += time.perf_counter() - began
    screens.finish()
    evidence.findings.extend(screens.findings)
    if policy.full or stack.corpus is not None:
        unavailable.extend(derive_data(evidence, policy, nonce, stack))
    if evidence.spec.rows is not None:
        unavailable.extend(check_rows(evidence, replays.reports, nonce, stack))
    evidence.findings.extend(replays.findings)
    others = list[UnreplayedSteps]()
    if replays.lost or selection.out_of_reach or not selection.sampled:
        lines, others = unreplayed(selection, policy, evidence, replays.lost)
        unavailable = lines + unavailable
    unavailable += [*replays.unavailable, *evidence.findings.open_lines, *evidence.varying.unmet(policy)]
    reading = time.perf_counter() - started - replaying
    graph = evidence.spec.graph if replays.reports and replays_graph(evidence, policy, stack) else None
    return make_report(evidence, plan, replays.reports, unavailable, (reading, replaying), graph, others)


def _require_origin(evidence: CheckedRun, stack: VerifierStack) -> None:
    recipe = evidence.spec.recipe
    if stack.origin is None and recipe is not None and recipe.model.initial is not None:
        needed = f"the recipe begins with {recipe.model.initial}: give the directory of these weights with --initial"
        evidence.findings.leave_open("first weights", needed)


def note_origin_not_compared(evidence: CheckedRun, stack: VerifierStack) -> None:
    """Say of a segment that begins behind anchor 0 that it is not compared with the verifier's origin."""
    if evidence.begins and stack.origin is not None and evidence.spec.first_weights is None:
        begins = f"the segment begins at the anchor of step {evidence.begins}, and only that of step 0 shows it"
        evidence.findings.not_checked.append(
            f"whether the run begins with the weights of {stack.origin.path}: {begins}"
        )


def ends_of_chain(evidence: CheckedRun, stack: VerifierStack) -> tuple[int, ...]:
    """The anchors that say whether the chain begins as it should, and ends with the weights of the claim."""
    marks = sorted(evidence.anchors)
    first = marks[:1] if evidence.spec.recipe is not None or stack.origin is not None else []
    return (*first, *(marks[-1:] if evidence.claim.weights is not None else []))
