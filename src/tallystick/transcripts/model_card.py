"""The identity of a model, independent of the server: architecture, weights, tokenizer, template and precision."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.documents.document import DigestText, Document, Positive

Label = Annotated[str, Field(min_length=1, max_length=256)]
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

    @property
    def identity(self) -> Digest:
        """The model root."""
        return self.digest_as("model")
