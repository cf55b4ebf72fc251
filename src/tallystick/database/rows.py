"""What the database can be asked about: one frozen row a noun, from which its table, view and JSON schema follow.

Digests are written `sha256:<hex>`, times in nanoseconds since 1970 (UTC), sizes in bytes, durations in seconds unless
the name says otherwise. A field that is `None` was not stated.
"""

from __future__ import annotations

from typing import Annotated, Final

from tallystick.database.nouns import (
    ELSEWHERE,
    HASH,
    INDEXED,
    KEY,
    NOUNS as NOUNS,
    UNIQUE,
    NumberOf,
    Of,
    To,
    noun,
    relations,
)

SourceName = Annotated[str, UNIQUE, NumberOf("source", "source")]
OfRun = Annotated[str | None, NumberOf("run"), Of("runs", "name")]
RunKey = Annotated[str, KEY, NumberOf("run"), Of("runs", "name")]
GraphKey = Annotated[str, KEY, NumberOf("graph"), Of("graphs", "root")]
AuditKey = Annotated[str, KEY, NumberOf("audit"), Of("audits", "digest")]


@noun("runs", table="run", orders=("name",))
class RunRow:
    """A run: `kind` is training or inference; `status` is recording, claimed or failed."""

    name: SourceName
    kind: str
    status: str
    title: str | None
    claim: Annotated[str | None, INDEXED]
    spec: str | None
    environment: Annotated[str | None, To("environments", "digest")]
    data: str | None
    transcript: str | None
    records: int
    steps: int
    final_state: str | None
    weights: str | None
    graph: str | None
    no_graph: str | None
    seconds: float | None
    place: Annotated[str, ELSEWHERE]


@noun("records", table="record")
class RecordRow:
    """A record of a run, by its place in the transcript; `leaf` is its RFC 6962 leaf hash in hexadecimal."""

    run: RunKey
    number: Annotated[int, KEY]
    kind: str
    leaf: Annotated[str, HASH]


@noun("steps", table="step")
class StepRow:
    """A step of a training run: what its record states. `tags` are separated by blanks."""

    run: RunKey
    step: Annotated[int, KEY]
    record: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None
    batch: str | None
    graph: Annotated[str | None, To("graphs", "root")]
    no_graph: str | None
    tags: str | None
    seconds: float | None
    recording_seconds: float | None


@noun("anchors", table="anchor")
class AnchorRow:
    """A full state that a run recorded; `present` says whether its file was there when it was last read."""

    run: RunKey
    step: Annotated[int, KEY]
    record: int
    digest: Annotated[str, INDEXED]
    file: str
    present: bool


@noun("stored_files", table="stored_file")
class StoredFileRow:
    """A file of a run that was copied into a store of blobs, under the digest of its bytes."""

    run: Annotated[str, KEY, NumberOf("source", "source"), Of("runs", "name")]
    file: Annotated[str, KEY]
    blob: Annotated[str, INDEXED]
    bytes: int


@noun("graphs", table="graph")
class GraphRow:
    """A graph by its root; `form` is logical, distributed or verification. `operations` are of one run through it."""

    root: Annotated[str, UNIQUE]
    form: str
    dialect: str
    nodes: int
    inputs: int
    outputs: int
    operations: int | None
    place: str | None


@noun("graph_uses", table="graph_use")
class GraphUseRow:
    """That a run names a graph: `role` is step, further or model."""

    run: RunKey
    graph: Annotated[str, KEY, NumberOf("graph"), To("graphs", "root")]
    role: Annotated[str, KEY]
    file: str


@noun("graph_links", table="graph_link")
class GraphLinkRow:
    """That two graphs are forms of one computation: `graph` is the `relation` of `other`, both by their roots."""

    graph: GraphKey
    relation: Annotated[str, KEY]
    other: Annotated[str, KEY, To("graphs", "root")]


@noun("operators", table="operator")
class OperatorRow:
    """A node of a graph; `results` are its dtypes and shapes as text, `module` where in the model it came from."""

    graph: GraphKey
    number: Annotated[int, KEY]
    operator: str
    module: str | None
    results: str
    operations: int | None


@noun("tensors", table="tensor")
class TensorRow:
    """A tensor by its digest; `shape` is written 2x3, `layout` is row-major in all that we write."""

    digest: Annotated[str, UNIQUE]
    dtype: str
    shape: str
    layout: str
    bytes: int


@noun("bindings", table="binding")
class BindingRow:
    """A tensor at an edge: `edge` names a value of the graph or of the state, `moment` is before, during or after.

    `intended` is the dtype that the graph or the spec asks for, `realised` the one of the tensor that is there.
    """

    run: RunKey
    step: Annotated[int, KEY]
    edge: Annotated[str, KEY]
    moment: Annotated[str, KEY]
    tensor: Annotated[str, NumberOf("tensor"), To("tensors", "digest")]
    graph: Annotated[str | None, NumberOf("graph"), To("graphs", "root")]
    intended: str
    realised: str
    file: str


@noun("environments", key=("digest",))
class EnvironmentRow:
    """A stack that a prover states, by the digest of its document, which `body` holds as JSON."""

    digest: str
    body: str


@noun("claims", key=("digest", "run_id"))
class ClaimRow:
    """A claim, by its digest; `body` is its canonical JSON."""

    digest: str
    run: Annotated[str, Of("runs", "name")]
    body: str


@noun("devices", table="device")
class DeviceRow:
    """A device of a cluster: its memory in bytes, what its memory moves in a second, and its peak.

    `operations_per_second` is the largest of its `peaks`, which are given by dtype as JSON.
    """

    cluster: Annotated[str, NumberOf("cluster")]
    name: str
    kind: str
    model: str | None
    host: str | None
    memory_bytes: int | None
    bytes_per_second: float | None
    operations_per_second: float | None
    peaks: str


@noun("links", table="link")
class LinkRow:
    """A connection of two devices."""

    cluster: Annotated[str, NumberOf("cluster")]
    one: str
    other: str
    bytes_per_second: float | None
    latency_seconds: float | None


@noun("traces", table="trace")
class TraceRow:
    """A timeline; `digest` is of its statement, `graph` the root of the graph whose operators its events name.

    `program` reported the events. Their times count from the zero of `clock`, which `began_ns` says if it is known.
    """

    name: SourceName
    run: OfRun
    cluster: Annotated[str | None, NumberOf("cluster"), To("devices", "cluster")]
    digest: str
    graph: Annotated[str | None, Of("graphs", "root")]
    claim: str | None
    program: str
    clock: str
    began_ns: int | None
    events: int
    start_ns: int | None
    end_ns: int | None
    place: Annotated[str, ELSEWHERE]


@noun("events", table="event", orders=("start_ns",))
class EventRow:
    """An event of a trace; `operator` is the number of a node in the graph of the trace.

    `bytes` are moved by a copy or a collective, `memory_bytes` in use after it; `members` of a collective are separated
    by blanks; `subject` is the digest that a checkpoint, challenge or response is about.
    """

    trace: Annotated[str, KEY, NumberOf("trace"), Of("traces", "name")]
    number: Annotated[int, KEY]
    kind: str
    name: str
    device: Annotated[str, To("devices", "name")]
    stream: int | None
    operator: int | None
    step: int | None
    start_ns: int
    duration_ns: int
    bytes: int | None
    memory_bytes: int | None
    members: str | None
    subject: str | None


@noun("audits", table="audit")
class AuditRow:
    """An audit by the digest of its report; `made` is its date (UTC), `body` the report as JSON.

    `kind` is training, inference, operators (of one step) or receipts.
    """

    digest: Annotated[str, UNIQUE]
    kind: str
    run: OfRun
    claim: Annotated[str | None, INDEXED]
    outcome: str
    sentence: str
    mode: str | None
    nonce: str | None
    steps: int | None
    replayed_steps: int | None
    seconds: float | None
    made: str | None
    body: str


@noun("audited_segments", table="audited_segment")
class AuditedSegmentRow:
    """A segment that an audit replayed: the steps from `first_step` to `last_step`.

    `outcome` is agrees, differs or another word of the report; `seconds` are those of the replay.
    """

    audit: AuditKey
    run: Annotated[str | None, ELSEWHERE, Of("runs", "name")]
    first_step: Annotated[int, KEY]
    last_step: int
    outcome: str
    seconds: float | None


@noun("findings", table="finding")
class FindingRow:
    """One comparison of an audit: where, the distance found, and the distance allowed.

    An advisory finding does not decide. `step` is there where the place names one.
    """

    audit: AuditKey
    number: Annotated[int, KEY]
    check: str
    place: str
    step: int | None
    distance: float | None
    allowed: float | None
    agrees: bool
    advisory: bool
    detail: str


@noun("challenges", table="challenge")
class ChallengeRow:
    """What a verifier asked of a run; `asked` is the request as JSON."""

    digest: Annotated[str, UNIQUE]
    run: OfRun
    asked: str
    nonce: str | None
    party: str | None
    made_ns: int


@noun("responses", table="response")
class ResponseRow:
    """What was handed over for a challenge."""

    challenge: Annotated[str, KEY, NumberOf("challenge"), Of("challenges", "digest")]
    digest: Annotated[str, KEY]
    bytes: int
    made_ns: int


@noun("streams", table="stream")
class StreamRow:
    """A stream of receipts that one provider signs with `key`."""

    name: SourceName
    key: str | None
    receipts: int
    place: Annotated[str, ELSEWHERE]


@noun("receipts", table="receipt")
class ReceiptRow:
    """A receipt of one answer, by its place in the stream; `sampler` is its JSON, `bytes` its size.

    `verdict` is that of the last check of it which was added: accepted, rejected or inconclusive, or None.
    """

    stream: Annotated[str, KEY, NumberOf("stream"), Of("streams", "name")]
    number: Annotated[int, KEY]
    sequence: int
    key: str
    request: Annotated[str, INDEXED]
    digest: Annotated[str, INDEXED]
    model: Annotated[str, INDEXED]
    engine: str
    environment: str
    sampler: str
    prompt_tokens: int
    answer_tokens: int
    finish: str
    bytes: int
    verdict: Annotated[str | None, ELSEWHERE]
    verdict_sentence: Annotated[str | None, ELSEWHERE]


@noun("disputes", table="dispute")
class DisputeRow:
    """A dispute of a coordinator, called `name`: where it stands, and how it ended.

    `root` is that of the transcript in dispute; leaves [low, high) of `size` at `level` (records, operators) are left.
    """

    coordinator: Annotated[str, NumberOf("source", "source")]
    name: Annotated[str, UNIQUE]
    number: int
    root: Annotated[str, INDEXED, Of("runs", "transcript")]
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


@noun("moves", table="move")
class MoveRow:
    """A move of a dispute, in the coordinator's order, and where the dispute stood after it; `body` is its JSON."""

    dispute: Annotated[str, KEY, NumberOf("dispute"), Of("disputes", "name")]
    number: Annotated[int, KEY]
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


RELATIONS: Final = relations()
"""Which fields of two nouns hold the same; each can be followed in both directions."""
