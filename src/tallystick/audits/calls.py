"""The audit of calls of a model: recheck, replay sampled calls from the graph, compare what came out.

Only the ends of a call are compared. On the stack of the prover its outputs have to be repeated bit for bit; on
another one they are compared where the policy states how far outputs may lie apart, and the verdict stays open
otherwise. Single operators are judged from an opening (`tally open`, `tally judge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tallystick.audits.checked_run import follow_lines
from tallystick.audits.policy import AuditPlan, Policy, Selection, sample_steps
from tallystick.audits.replay import describe_other_stack
from tallystick.audits.report import CLOSELY, Report, unsigned
from tallystick.audits.step_graphs import read_claimed_graph, read_named
from tallystick.core.digests import Digest
from tallystick.core.errors import MalformedError, ProofError, UnavailableError
from tallystick.core.safetensors import StateFile, read_state
from tallystick.core.tensor_digests import StateDigests, digest_state, state_digest
from tallystick.core.tensors import State, Tensor, TensorSpec
from tallystick.formats.claims import InferenceClaim, call_file
from tallystick.formats.records import CallRecord
from tallystick.formats.spec import Environment
from tallystick.formats.store.directories import InferenceDirectory
from tallystick.programs.execution import Engine, execute
from tallystick.programs.graph import Graph
from tallystick.programs.step_names import BATCH
from tallystick.verdicts.exact import describe_difference
from tallystick.verdicts.properties import judge_properties
from tallystick.verdicts.tolerance import Finding, euclidean
from tallystick.verdicts.verdict import (
    AGREES,
    DIFFERS,
    ZERO_SIGNS,
    Findings,
    Verdict,
    VerdictCoverage,
    bound_by_digest,
    require,
)

Progress = Callable[[int, int], None]


@dataclass
class Calls:
    """An inference directory with what was found in it; `findings` says which checks it passed."""

    run: InferenceDirectory
    claim: InferenceClaim
    environment: Environment
    graph: Graph
    constants: State
    records: list[CallRecord] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def weights(self) -> State:
        """Weights and buffers; raises `UnavailableError` without a file, `ProofError` for another digest."""
        return self.digested_weights()[0]

    def digested_weights(self, mapped: bool = False) -> tuple[State, StateDigests]:
        """As `weights`, with their digests; `mapped` ones are views of the file, for a folder that nobody changes."""
        if not self.run.weights_path.is_file():
            raise UnavailableError("weights.safetensors: not handed over; no call can be replayed without it")
        with bound_by_digest("weights.safetensors does not hold the claimed weights"):
            file = StateFile(self.run.weights_path, canonical=True)
            weights = {name: file.tensor(name) if mapped else file.tensor(name).copy() for name in file.names}
        digests = digest_state(weights)
        require(digests.digest == self.claim.weights, "weights.safetensors does not hold the claimed weights")
        return weights, digests

    def inputs(self, record: CallRecord) -> State:
        """What went into a call; raises `ProofError` unless it is what was recorded."""
        return self._part(call_file(record.index, "inputs"), record.inputs)

    def outputs(self, record: CallRecord) -> State:
        """What came out of a call; raises `ProofError` unless it is what was recorded."""
        return self._part(call_file(record.index, "outputs"), record.outputs)

    def _part(self, file: str, name: Digest) -> State:
        with bound_by_digest(f"{file} does not hold what was recorded"):
            state = read_state(self.run.path / file, canonical=True)
        require(state_digest(state) == name, f"{file} does not hold what was recorded")
        return state


def audit_inference(
    run: InferenceDirectory,
    policy: Policy,
    nonce: bytes,
    environment: Environment,
    engine: Engine,
    progress: Progress = lambda *_: None,
) -> Report:
    """Audit recorded calls under `policy` with a nonce drawn after their claim.

    Whatever is wrong with the calls is in the report, by the rule of `audit_training`.
    """
    started, findings = time.perf_counter(), Findings(keeps_going=True)
    calls = open_calls(run, policy, findings)
    if calls is None:
        verdict = Verdict(tuple(findings.seen), tuple(findings.open_lines), ("the records and the calls",))
        return Report(verdict, None, AuditPlan(policy, nonce=nonce), None, time.perf_counter() - started)
    total = len(calls.records)
    drawn = range(1, total + 1) if policy.full else sample_steps(nonce, calls.claim.identity, total, policy.samples)
    chosen, read, done = tuple(sorted(drawn)), time.perf_counter(), 0
    unavailable = findings.open_lines + ([] if chosen else ["no call could be sampled"])
    try:
        for number in chosen if not findings.rejected else ():
            if not _replay(calls, calls.records[number - 1], policy, environment, engine):
                break
            done += 1
            progress(done, len(chosen))
    except UnavailableError as error:
        unavailable.append(str(error))
    if policy.properties and not findings.rejected:
        unavailable += _properties(calls, policy, chosen)
    unavailable += [line for line in findings.open_lines if line not in unavailable]
    verdict = Verdict(
        tuple(findings.seen),
        tuple(unavailable),
        (
            *([ZERO_SIGNS] if policy.mode == "tolerant" else []),
            unsigned(policy),
            "whether other calls were made and not recorded",
        ),
        tuple(_assumptions(policy, nonce, calls.claim.graph)),
        VerdictCoverage(done, total, "calls", "replayed from the graph", done, CLOSELY[policy.mode]),
    )
    plan = AuditPlan(policy, Selection(chosen, (), ()), nonce)
    seconds = read - started, time.perf_counter() - read
    return Report(verdict, calls.claim.identity, plan, calls.claim.graph, *seconds)


def gather_calls(run: InferenceDirectory, policy: Policy) -> Calls:
    """Read an inference directory and check all of it; what fails is in the findings.

    Raises:
        MalformedError: a file has no form that is known here.
        UnavailableError: a file is missing or larger than the policy allows.
        ProofError: the graph or the environment is not the claimed one, and nothing can be read.
    """
    findings = Findings()
    calls = open_calls(run, policy, findings)
    if calls is None:
        raise ProofError(next(finding.detail for finding in findings.seen if not finding.agrees))
    return calls


def recheck_calls(run: InferenceDirectory, policy: Policy) -> Calls:
    """As `gather_calls`, with every tensor that was handed over compared with its digest; nothing is replayed."""
    calls = gather_calls(run, policy)
    if run.weights_path.is_file():
        with calls.findings.check("weights"):
            calls.weights()
    for record in calls.records:
        with calls.findings.check("call", f"call {record.index}"):
            calls.inputs(record)
            calls.outputs(record)
    return calls


def open_calls(run: InferenceDirectory, policy: Policy, findings: Findings) -> Calls | None:
    """As `gather_calls`, into `findings`; `None` where claim, environment or graph cannot be read."""
    expected = f"the expected claim {policy.claim}"
    claim = read_named(findings, run.claim_path, InferenceClaim, "claim", policy.claim, expected)
    if claim is None:
        return None
    environment = read_named(findings, run.environment_path, Environment, "environment", claim.environment)
    program: tuple[Graph, dict[str, Tensor]] | None = None
    with findings.check("graph"):
        program = read_claimed_graph(run.graph_path, claim.graph, "the claim")
    if environment is None or program is None:
        return None
    calls = Calls(run, claim, environment, *program, findings=findings)
    with findings.check("transcript root"):
        _read_transcript(calls, policy)
    return calls


def _read_transcript(calls: Calls, policy: Policy) -> None:
    def follow(line: bytes, where: str) -> None:
        record = CallRecord.from_bytes(line, where)
        number = len(calls.records) + 1
        require(record.index == number, f"call {record.index} stands in the place of call {number}")
        calls.records.append(record)

    follow_lines(calls.run.transcript_path, policy, follow).check(calls.claim.transcript)


def _replay(calls: Calls, record: CallRecord, policy: Policy, environment: Environment, engine: Engine) -> bool:
    """Replay one call and compare its outputs; false where it is not the recorded one, or a file of it is missing."""
    subject = f"call {record.index}"
    is_read = False
    with calls.findings.check("call", subject):
        weights, inputs, claimed = calls.weights(), calls.inputs(record), calls.outputs(record)
        is_read = True
    if not is_read:
        return False
    is_exact = policy.mode == "exact"
    if is_exact and environment.differing(calls.environment):
        tolerant = "`tally audit --tolerant` with a policy that states `outputs` allows a distance"
        raise UnavailableError(describe_other_stack(environment, calls.environment, tolerant))
    if not is_exact and policy.outputs is None:
        raise UnavailableError("the policy does not state how far outputs may lie apart on another stack (outputs)")
    bindings = {**calls.constants, **weights, **{f"{BATCH}{name}": tensor for name, tensor in inputs.items()}}
    for entry in calls.graph.inputs:
        if entry.name not in bindings:
            raise UnavailableError(f"{subject}: {entry.name} is not there")
        if (spec := TensorSpec.of(bindings[entry.name])) != entry.spec:
            raise UnavailableError(f"{subject}: {entry.name} is {spec}, and {entry.spec} in the graph")
    replayed = execute(calls.graph, bindings, engine)
    for name in sorted(claimed.keys() | replayed.keys()):
        finding = _compare(claimed.get(name), replayed.get(name), None if is_exact else policy.outputs)
        calls.findings.note(finding, "output", f"{subject}, {name}")
    return True


def _compare(claimed: Tensor | None, replayed: Tensor | None, allowed: float | None) -> Finding:
    if claimed is None or replayed is None:
        return replace(DIFFERS, detail="only on one side")
    if TensorSpec.of(claimed) != TensorSpec.of(replayed):
        return replace(DIFFERS, detail=f"{TensorSpec.of(claimed)}, replayed {TensorSpec.of(replayed)}")
    if bytes(claimed.data) == bytes(replayed.data):
        return AGREES
    if allowed is None or not TensorSpec.of(claimed).is_float:
        return replace(DIFFERS, detail=describe_difference(claimed, replayed))
    theirs, ours = claimed.values().astype(np.float64), replayed.values().astype(np.float64)
    return Finding(relative_distance(theirs, ours), allowed)


def relative_distance(claimed: np.ndarray, replayed: np.ndarray) -> float:
    """‖claimed − replayed‖₂ ÷ ‖replayed‖₂; infinite where one of the two is finite and the other is not."""
    finite = np.isfinite(replayed)
    same = (claimed == replayed) | (np.isnan(claimed) & np.isnan(replayed))
    if not np.array_equal(np.isfinite(claimed), finite) or not same[~finite].all():
        return float("inf")
    scale = euclidean(replayed[finite])
    gap = euclidean(claimed[finite] - replayed[finite])
    return gap / scale if scale else (float("inf") if gap else 0.0)


def _properties(calls: Calls, policy: Policy, chosen: tuple[int, ...]) -> list[str]:
    """Properties of what is bound without a replay: weights, inputs and outputs of the sampled calls."""
    lines: list[str] = []
    names = {output.name: output.value for output in calls.graph.outputs}
    for number in chosen:
        record = calls.records[number - 1]
        try:
            given = {f"{BATCH}{name}": tensor for name, tensor in calls.inputs(record).items()}
            results = {names[name]: tensor for name, tensor in calls.outputs(record).items() if name in names}
        except (ProofError, MalformedError, UnavailableError) as error:
            lines.append(f"call {number}: {error}")
            continue
        lines += judge_properties(calls.findings, calls.graph, given | results, policy.properties)
    return list(dict.fromkeys(lines))


def _assumptions(policy: Policy, nonce: bytes, graph: Digest) -> Iterator[str]:
    yield "SHA-256 is collision resistant, and this machine and its libraries compute what they say"
    yield f"the program that should have run is the graph that was replayed, {graph}"
    if nonce and not policy.full:
        yield "the nonce was drawn by the verifier after the claim was fixed"
    if policy.mode == "tolerant":
        yield "honest stacks differ by no more than the policy allows outputs to lie apart"
