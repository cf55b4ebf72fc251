"""What the database can be asked about: one frozen row a noun, with the columns of the view of the same name.

Digests are written `sha256:<hex>`, times in nanoseconds since 1970 (UTC), sizes in bytes, durations in seconds unless
the name says otherwise. A field that is `None` was not stated.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunRow:
    """A run: `kind` is training or inference; `status` is recording, claimed or failed."""

    name: str
    kind: str
    status: str
    title: str | None
    claim: str | None
    spec: str | None
    environment: str | None
    data: str | None
    transcript: str | None
    records: int
    steps: int
    final_state: str | None
    weights: str | None
    graph: str | None
    no_graph: str | None
    seconds: float | None
    place: str


@dataclass(frozen=True)
class RecordRow:
    """A record of a run, by its place in the transcript; `leaf` is its RFC 6962 leaf hash in hexadecimal."""

    run: str
    number: int
    kind: str
    leaf: str


@dataclass(frozen=True)
class StepRow:
    """A step of a training run: what its record states. `tags` are separated by blanks."""

    run: str
    step: int
    record: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None
    batch: str | None
    graph: str | None
    no_graph: str | None
    tags: str | None
    seconds: float | None
    recording_seconds: float | None


@dataclass(frozen=True)
class AnchorRow:
    """A full state that a run recorded; `present` says whether its file was there when it was last read."""

    run: str
    step: int
    record: int
    digest: str
    file: str
    present: bool


@dataclass(frozen=True)
class StoredFileRow:
    """A file of a run that was copied into a store of blobs, under the digest of its bytes."""

    run: str
    file: str
    blob: str
    bytes: int


@dataclass(frozen=True)
class GraphRow:
    """A graph by its root; `form` is logical, distributed or verification. `operations` are of one run through it."""

    root: str
    form: str
    dialect: str
    nodes: int
    inputs: int
    outputs: int
    operations: int | None
    place: str | None


@dataclass(frozen=True)
class GraphUseRow:
    """That a run names a graph: `role` is step, further or model."""

    run: str
    graph: str
    role: str
    file: str


@dataclass(frozen=True)
class GraphLinkRow:
    """That two graphs are forms of one computation: `graph` is the `relation` of `other`, both by their roots."""

    graph: str
    relation: str
    other: str


@dataclass(frozen=True)
class OperatorRow:
    """A node of a graph; `results` are its dtypes and shapes as text, `module` where in the model it came from."""

    graph: str
    number: int
    operator: str
    module: str | None
    results: str
    operations: int | None


@dataclass(frozen=True)
class TensorRow:
    """A tensor by its digest; `shape` is written 2x3, `layout` is row-major in all that we write."""

    digest: str
    dtype: str
    shape: str
    layout: str
    bytes: int


@dataclass(frozen=True)
class BindingRow:
    """A tensor at an edge: `edge` names a value of the graph or of the state, `moment` is before, during or after.

    `intended` is the dtype that the graph or the spec asks for, `realised` the one of the tensor that is there.
    """

    run: str
    step: int
    edge: str
    moment: str
    tensor: str
    graph: str | None
    intended: str
    realised: str
    file: str


@dataclass(frozen=True)
class EnvironmentRow:
    """A stack that a prover states, by the digest of its document, which `body` holds as JSON."""

    digest: str
    body: str


@dataclass(frozen=True)
class ClaimRow:
    """A claim, by its digest; `body` is its canonical JSON."""

    digest: str
    run: str
    body: str


@dataclass(frozen=True)
class DeviceRow:
    """A device of a cluster: its memory in bytes, what its memory moves in a second, and its peak.

    `operations_per_second` is the largest of its `peaks`, which are given by dtype as JSON.
    """

    cluster: str
    name: str
    kind: str
    model: str | None
    host: str | None
    memory_bytes: int | None
    bytes_per_second: float | None
    operations_per_second: float | None
    peaks: str


@dataclass(frozen=True)
class LinkRow:
    """A connection of two devices."""

    cluster: str
    one: str
    other: str
    bytes_per_second: float | None
    latency_seconds: float | None


@dataclass(frozen=True)
class TraceRow:
    """A timeline; `digest` is of its statement, `graph` the root of the graph whose operators its events name.

    `program` reported the events. Their times count from the zero of `clock`, which `began_ns` says if it is known.
    """

    name: str
    run: str | None
    cluster: str | None
    digest: str
    graph: str | None
    claim: str | None
    program: str
    clock: str
    began_ns: int | None
    events: int
    start_ns: int | None
    end_ns: int | None
    place: str


@dataclass(frozen=True)
class EventRow:
    """An event of a trace; `operator` is the number of a node in the graph of the trace.

    `bytes` are moved by a copy or a collective, `memory_bytes` in use after it; `members` of a collective are separated
    by blanks; `subject` is the digest that a checkpoint, challenge or response is about.
    """

    trace: str
    number: int
    kind: str
    name: str
    device: str
    stream: int | None
    operator: int | None
    step: int | None
    start_ns: int
    duration_ns: int
    bytes: int | None
    memory_bytes: int | None
    members: str | None
    subject: str | None


@dataclass(frozen=True)
class AuditRow:
    """An audit by the digest of its report; `made` is its date (UTC), `body` the report as JSON.

    `kind` is training, inference, operators (of one step) or receipts.
    """

    digest: str
    kind: str
    run: str | None
    claim: str | None
    outcome: str
    sentence: str
    mode: str | None
    nonce: str | None
    steps: int | None
    replayed_steps: int | None
    seconds: float | None
    made: str | None
    body: str


@dataclass(frozen=True)
class AuditedSegmentRow:
    """A segment that an audit replayed: the steps from `first_step` to `last_step`.

    `outcome` is agrees, differs or another word of the report; `seconds` are those of the replay.
    """

    audit: str
    run: str | None
    first_step: int
    last_step: int
    outcome: str
    seconds: float | None


@dataclass(frozen=True)
class FindingRow:
    """One comparison of an audit: where, the distance found, and the distance allowed.

    An advisory finding does not decide. `step` is there where the place names one.
    """

    audit: str
    number: int
    check: str
    place: str
    step: int | None
    distance: float | None
    allowed: float | None
    agrees: bool
    advisory: bool
    detail: str


@dataclass(frozen=True)
class ChallengeRow:
    """What a verifier asked of a run; `asked` is the request as JSON."""

    digest: str
    run: str | None
    asked: str
    nonce: str | None
    party: str | None
    made_ns: int


@dataclass(frozen=True)
class ResponseRow:
    """What was handed over for a challenge."""

    challenge: str
    digest: str
    bytes: int
    made_ns: int


@dataclass(frozen=True)
class StreamRow:
    """A stream of receipts that one provider signs with `key`."""

    name: str
    key: str | None
    receipts: int
    place: str


@dataclass(frozen=True)
class ReceiptRow:
    """A receipt of one answer, by its place in the stream; `sampler` is its JSON, `bytes` its size.

    `verdict` is that of the last check of it which was added: accepted, rejected or inconclusive, or None.
    """

    stream: str
    number: int
    sequence: int
    key: str
    request: str
    digest: str
    model: str
    engine: str
    environment: str
    sampler: str
    prompt_tokens: int
    answer_tokens: int
    finish: str
    bytes: int
    verdict: str | None
    verdict_sentence: str | None


@dataclass(frozen=True)
class DisputeRow:
    """A dispute of a coordinator, called `name`: where it stands, and how it ended.

    `root` is that of the transcript in dispute; leaves [low, high) of `size` at `level` (records, operators) are left.
    """

    coordinator: str
    name: str
    number: int
    root: str
    prover: str
    challenger: str
    phase: str
    level: str
    low: int
    high: int
    size: int
    mover: str
    fault: str | None
    ending: str
    moves: int


@dataclass(frozen=True)
class MoveRow:
    """A move of a dispute, in the coordinator's order, and where the dispute stood after it; `body` is its JSON."""

    dispute: str
    number: int
    role: str
    party: str
    kind: str
    summary: str
    made_ns: int
    phase: str
    level: str
    low: int
    high: int
    size: int
    body: str
