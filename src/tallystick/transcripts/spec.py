"""The spec: everything that is fixed before a run. A claim names it by its digest."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from tallystick.commitments.digests import Digest
from tallystick.documents.document import Count, DigestText, Document
from tallystick.errors import MalformedError
from tallystick.transcripts.average import AverageRule
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.recipe import Recipe, RecordRecipe
from tallystick.transcripts.stated_rules import StatedRules


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
    """A recipe and the roots of its data, or the description of a custom training loop.

    A custom training loop has no recipe from which a verifier could rebuild the run; it has `description` and `record`
    instead. Either kind may name the root of its step graph (`graphs/step.json`), from which a verifier replays. With a
    graph, a custom loop also states the rules of its `optimizer`, one for each parameter group, and the `seed` of its
    random numbers if it draws any. A custom loop without a graph can be checked too, but its verdict says that no step
    was replayed. `initial` is the state digest of the weights with which a custom loop began, and `rows` the digest of
    the rows recipe whose rows its batches are. `average` is how the step graph averages the weights, if it does.
    """

    spec: Literal["training"] = "training"
    version: Literal[1] = 1
    recipe: Recipe | None = None
    description: dict[Annotated[str, Field(max_length=64)], Note] | None = None
    record: RecordRecipe | None = None
    data: CommittedData | None = None
    graph: DigestText | None = None
    optimizer: StatedRules | None = None
    initial: DigestText | None = None
    rows: DigestText | None = None
    seed: Count | None = None
    average: AverageRule | None = None

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        by_recipe = (self.recipe is not None, self.data is not None)
        by_description = (self.description is not None, self.record is not None)
        is_recipe_run = all(by_recipe) and not any(by_description)
        is_custom_loop = all(by_description) and not any(by_recipe)
        if not (is_recipe_run or is_custom_loop):
            raise ValueError("either recipe and data, or description and record")
        if (self.optimizer is not None) != (self.graph is not None and self.recipe is None):
            raise ValueError("optimizer belongs to the step graph of a custom training loop, and to nothing else")
        if self.initial is not None and self.recipe is not None:
            raise ValueError("initial belongs to a custom training loop; a recipe states it as model.initial")
        if self.rows is not None and self.recipe is not None:
            raise ValueError("rows belong to a custom training loop; a recipe states its data")
        if self.seed is not None and self.optimizer is None:
            raise ValueError("seed belongs to the step graph of a custom training loop; a recipe has its own")
        if self.average is not None and self.optimizer is None:
            raise ValueError("average belongs to the step graph of a custom training loop, and to nothing else")
        return self

    @classmethod
    def of(cls, recipe: Recipe, data: DatasetCommitment, graph: Digest | None = None) -> Spec:
        """The spec of a run that a verifier can rebuild, and the root of its step graph if there is one."""
        return cls(recipe=recipe, data=data, graph=graph)

    @property
    def first_weights(self) -> Digest | None:
        """The state digest of the weights that the run is said to begin with, if it states any."""
        return self.initial if self.recipe is None else self.recipe.model.initial

    @property
    def data_root(self) -> Digest | None:
        """The root of the data; `None` for a custom training loop."""
        return None if self.data is None else self.data.root

    @property
    def recorded(self) -> RecordRecipe:
        """The settings of the recording, from the recipe or from `record`."""
        settings = self.recipe.record if self.recipe is not None else self.record
        assert settings is not None  # checked by _is_of_one_kind
        return settings

    @property
    def identity(self) -> Digest:
        """The digest by which the header and the claim name this spec."""
        return self.digest_as("spec")
