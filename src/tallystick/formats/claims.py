"""Claims over trainings and calls of a model, anchors in parts, and the card that identifies a model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from tallystick.core.canonical_json import encode
from tallystick.core.digests import Digest, digest
from tallystick.core.documents import Count, DigestText, Document, Label, Positive, Reason

# The claim that a spec, run in an environment, gave a transcript. Its canonical bytes have one digest.

WITHDRAWN_MAX: Final = 1024


class Log(Document):
    """The root and the number of leaves of an RFC 6962 tree."""

    root: DigestText
    size: Count


class Withdrawn(Document):
    """Steps whose graph turned out, after they were recorded, not to be what the loop did; and why."""

    first: Positive
    last: Positive
    reason: Reason


class Claim(Document):
    """What a prover signs and publishes; the signature and the log entry are over these bytes."""

    digest_noun: ClassVar[str] = "claim"

    claim: Literal["training"] = "training"
    version: Literal[1] = 1
    spec: DigestText
    environment: DigestText
    data: DigestText | None = None
    transcript: Log
    trace: Log
    final_state: DigestText
    weights: DigestText | None = None
    """The state digest of the weights in the final state, as a model card names them; claims of old have none."""
    no_graph: Reason | None = None
    """Why the recorder of a loop captured no step graph, or withdrew that of the spec; left out if neither."""
    withdrawn: Annotated[tuple[Withdrawn, ...], Field(min_length=1, max_length=WITHDRAWN_MAX)] | None = None
    """Steps of a loop that have a graph in their records and cannot be replayed, in order."""

    def why_withdrawn(self, step: int) -> str | None:
        """Why `step` cannot be replayed although its record has a graph; `None` if it can."""
        return next((steps.reason for steps in self.withdrawn or () if steps.first <= step <= steps.last), None)


# The claim over calls of a model: a graph with these weights gave these outputs for these inputs.


class InferenceClaim(Document):
    """What a prover signs and publishes about the calls of one model; `weights` is a state digest."""

    digest_noun: ClassVar[str] = "claim"

    claim: Literal["inference"] = "inference"
    version: Literal[1] = 1
    graph: DigestText
    weights: DigestText
    environment: DigestText
    transcript: Log


def call_file(index: int, part: Literal["inputs", "outputs"]) -> str:
    """The path of the inputs or outputs of call `index` inside an inference directory."""
    return f"calls/{index:08d}.{part}.safetensors"


# The list beside an anchor of which some tensors are in the files of earlier anchors.

TensorName = Annotated[str, Field(min_length=1, max_length=1024)]


class AnchorParts(Document):
    """`elsewhere`: the names of the tensors that did not change, and the anchor in whose file each of them is."""

    anchor: Literal["parts"] = "parts"
    version: Literal[2] = 2
    elsewhere: dict[TensorName, Count]


def parts_file(index: int) -> str:
    """The path of the list of anchor `index` inside a run directory."""
    return f"anchors/step_{index:08d}.json"


def part_file(index: int) -> str:
    """The path of the tensors of anchor `index` that changed, inside a run directory."""
    return f"anchors/step_{index:08d}.part.safetensors"


# The identity of a model, independent of the server: architecture, weights, tokenizer, template and precision.

Dtype = Literal["F32", "BF16", "F16"]
TRAINING_CLAIM: Final = "training-claim.json"
"""In a model directory: the claim of the run that trained it."""


def named_root(name: str) -> Digest:
    """The model root used if only the name of a model is known."""
    return digest("model", encode({"name": name}))


class ModelCard(Document):
    """A language model by its content; `identity` is the model root that receipts name.

    `config` is the blob digest of the configuration in canonical JSON. `weights` is the state digest of parameters and
    persistent buffers, tied ones once; in cards of version 1 they are in it under each of their names. `tokenizer` and
    `template` are the blob digests of the files. `quantization` describes what is done to the weights before use.
    `layers` is the number of blocks, `width` the number of elements of a hidden state.
    """

    digest_noun: ClassVar[str] = "model"

    model: Literal[1, 2] = 2
    architecture: Label
    config: DigestText
    weights: DigestText
    tokenizer: DigestText
    template: DigestText | None = None
    dtype: Dtype = "F32"
    quantization: Label | None = None
    vocabulary: Positive
    layers: Positive
    width: Positive
