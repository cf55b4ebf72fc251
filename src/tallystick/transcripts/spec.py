"""The spec: all that is fixed before a run. A claim names it by its digest."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from tallystick.commitments.digests import Digest
from tallystick.documents.document import DigestText, Document
from tallystick.errors import MalformedError
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.recipe import Recipe, RecordRecipe
from tallystick.transcripts.rule import GroupRule


def _commitment(value: Any) -> DatasetCommitment:
    try:
        return value if isinstance(value, DatasetCommitment) else DatasetCommitment.from_json(value)
    except MalformedError as error:
        raise ValueError(str(error)) from None


CommittedData = Annotated[
    DatasetCommitment, PlainValidator(_commitment), PlainSerializer(lambda data: data.to_json(), return_type=Any)
]
Note = Annotated[str, Field(max_length=4096)]


class Spec(Document):
    """A recipe and the roots of the data it is run on.

    A run recorded around somebody's own loop has no recipe that a verifier could rebuild: it carries a
    `description` instead. Either kind may name the root of its step graph (`graphs/step.json`), from which a verifier
    replays, a loop beside it the rules of its `optimizer`, one for each parameter group; a loop without a graph can be
    checked, and a verdict on it says that no step was replayed.
    """

    spec: Literal["training"] = "training"
    version: Literal[1] = 1
    recipe: Recipe | None = None
    description: dict[Annotated[str, Field(max_length=64)], Note] | None = None
    record: RecordRecipe | None = None
    data: CommittedData | None = None
    graph: DigestText | None = None
    optimizer: Annotated[tuple[GroupRule, ...], Field(min_length=1, max_length=4096)] | None = None

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        rebuilt = (self.recipe is not None, self.data is not None)
        external = (self.description is not None, self.record is not None)
        if (all(rebuilt), any(external)) not in {(True, False)} and (any(rebuilt), all(external)) != (
            False,
            True,
        ):
            raise ValueError("either recipe and data, or description and record")
        if (self.optimizer is not None) != (self.graph is not None and self.recipe is None):
            raise ValueError("optimizer stands beside the step graph of somebody's own loop, and nowhere else")
        return self

    @classmethod
    def of(cls, recipe: Recipe, data: DatasetCommitment, graph: Digest | None = None) -> Spec:
        """The spec of a run that a verifier can rebuild, and the root of its step graph if there is one."""
        return cls(recipe=recipe, data=data, graph=graph)

    @property
    def data_root(self) -> Digest | None:
        """The one root that stands for the data everywhere."""
        return None if self.data is None else self.data.root

    @property
    def recorded(self) -> RecordRecipe:
        """What is recorded of every step."""
        settings = self.recipe.record if self.recipe is not None else self.record
        assert settings is not None  # held by _is_of_one_kind
        return settings

    @property
    def identity(self) -> Digest:
        """The digest by which the header and the claim name this spec."""
        return self.digest_as("spec")
