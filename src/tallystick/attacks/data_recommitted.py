"""The run is made again on other data and is consistent in itself."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tallystick.attacks.attack import Attack, accepted, rejected
from tallystick.attacks.forging import copy_data, recipe_of
from tallystick.attacks.token_files import commit_again, forge_tokenizer, forge_tokens
from tallystick.datasets.opened import SOURCE_FILES
from tallystick.errors import UsageError
from tallystick.frameworks.tokenizers import train_bpe
from tallystick.recorders.training import TrainingRun, train
from tallystick.store.run import RunDirectory
from tallystick.transcripts.dataset import DatasetCommitment
from tallystick.transcripts.spec import Spec


def forge(run: Path, out: Path) -> None:
    """Train honestly from the same recipe on a text whose lines are in reverse order."""
    honest = RunDirectory(run)
    source = next(honest.data_path.glob("source.*"), None)
    if source is None:
        raise UsageError("this forgery rewrites a source, and the data of this run is not text")
    lines = source.read_bytes().splitlines(keepends=True)
    with TemporaryDirectory() as folder:
        other = Path(folder) / source.name
        other.write_bytes(b"".join(reversed(lines)))
        train(recipe_of(honest.spec()), other, out)


def forge_tokens_only(run: Path, out: Path) -> None:
    """Train honestly on tokens that were not derived from the committed source."""
    spec = RunDirectory(run).spec()
    forged = copy_data(run, out)
    forge_tokens(forged.data_path, lambda tokens: tokens[::-1])
    commitment = spec.data
    assert isinstance(commitment, DatasetCommitment)  # forge_tokens refused everything else
    TrainingRun(forged, Spec.of(recipe_of(spec), commit_again(forged.data_path, commitment))).record()


def forge_tokenizer_only(run: Path, out: Path) -> None:
    """Train honestly on the committed source, with a tokenizer that was trained on another text."""
    spec = RunDirectory(run).spec()
    recipe, forged = recipe_of(spec), copy_data(run, out)
    source = (forged.data_path / SOURCE_FILES["text"]).read_text("utf-8")
    other = train_bpe(source.swapcase(), recipe.tokenizer.vocabulary)
    forge_tokenizer(forged.data_path, source, other)
    commitment = spec.data
    assert isinstance(commitment, DatasetCommitment)  # the recipe has data
    TrainingRun(forged, Spec.of(recipe, commit_again(forged.data_path, commitment))).record()


OTHER_RUN = "it is an honest run on the data it names; only a party who knows the agreed data can object"
NOT_DERIVED = "a sampled audit checks the digest of the tokens and does not derive them from the source"
NOT_TRAINED = "a sampled audit checks the digest of the tokenizer and does not train it again on the source"

ATTACKS = (
    Attack(
        name="data-recommitted",
        change="the whole run is made anew on another text, to which it commits",
        forge=forge,
        screens=accepted(OTHER_RUN),
        exact=accepted(OTHER_RUN),
        tolerant=accepted(OTHER_RUN),
    ),
    Attack(
        name="tokens-not-of-the-source",
        change="the run is made anew on tokens that do not come from the source it commits to",
        forge=forge_tokens_only,
        screens=accepted(NOT_DERIVED),
        exact=accepted(NOT_DERIVED),
        full=rejected("tokens of the source"),
        tolerant=accepted(NOT_DERIVED),
    ),
    Attack(
        name="tokenizer-of-other-text",
        change="the run is made again on its source, with byte pairs that were learned from another text",
        forge=forge_tokenizer_only,
        screens=accepted(NOT_TRAINED),
        exact=accepted(NOT_TRAINED),
        full=rejected("tokenizer of the source"),
        tolerant=accepted(NOT_TRAINED),
        reference="bpe",
    ),
)
