"""What a served model is, whatever serves it: architecture, weights, tokenizer, template and precision by digest."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tallystick.commitments.digests import Digest, digest
from tallystick.commitments.encoding import encode
from tallystick.documents.document import DigestText, Document, Positive

Label = Annotated[str, Field(min_length=1, max_length=256)]
Dtype = Literal["F32", "BF16", "F16"]


def named_root(name: str) -> Digest:
    """What stands for a model root where nobody has the model, only its name."""
    return digest("model", encode({"name": name}))


class ModelCard(Document):
    """A language model by its content; `identity` is the model root that receipts name.

    `config` is the digest, as a blob, of the canonical JSON of the configuration; `weights` a state digest;
    `tokenizer` and `template` digests, as blobs, of the files. `quantization` says what is done to the weights before
    they are used. `layers` counts the blocks, `width` the elements of a hidden state.
    """

    model: Literal[1] = 1
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
