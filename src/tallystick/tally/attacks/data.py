"""The training uses other data than the declared data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tallystick.core.errors import UsageError
from tallystick.engines.tokenizers import TokenizerFile, train_bpe
from tallystick.engines.torch.training.trainer import Observation
from tallystick.formats.data.corpus_files import read_corpus_commit
from tallystick.formats.data.preparation import SOURCE_FILES, TOKENS_FILE, encoder_of
from tallystick.formats.data.tokenizer import Tokenizer, Tokens, commit_tokens, read_tokens, tokenize, write_tokens
from tallystick.formats.data.tokens import CORPUS_FILE, TOKENIZER_FILE, TOKENS_LIST, CorpusTokens, token_path
from tallystick.formats.dataset import DatasetCommitment
from tallystick.formats.recipe import learning_rate
from tallystick.formats.spec import Spec
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.training import TrainingRun, train
from tallystick.tally.attacks.forging import (
    Attack,
    Batches,
    DishonestTrainer,
    Forger,
    accepted,
    copy_data,
    copy_run,
    find_scene,
    recipe_of,
    rejected,
    train_on,
)

# Exchanges the tokens of a run, with or without a new commitment.


def forge_tokens(data: Path, exchange: Callable[[np.ndarray], np.ndarray]) -> None:
    """Rewrite the file of tokens; raises `UsageError` if the data has none."""
    path = data / TOKENS_FILE
    if not path.is_file():
        raise UsageError("this forgery exchanges tokens, and the data of this run is not text")
    tokens, vocabulary = read_tokens(path)
    write_tokens(path, exchange(np.array(tokens)), vocabulary)


def forge_tokenizer(data: Path, source: str, tokenizer: Tokenizer) -> None:
    """Replace the tokenizer of a run by another one, and its tokens by those that this one makes of the source."""
    (data / TOKENIZER_FILE).write_bytes(tokenizer.to_bytes())
    write_tokens(data / TOKENS_FILE, tokenize(tokenizer, source), tokenizer.vocabulary)


def commit_again(data: Path, commitment: DatasetCommitment) -> DatasetCommitment:
    """The commitment with the tokenizer and tokens that are in `data` now, and with its old source."""
    tokenizer = Tokenizer.from_bytes((data / TOKENIZER_FILE).read_bytes())
    tokens = commit_tokens(*read_tokens(data / TOKENS_FILE))
    return replace(commitment, tokens=tokens, tokenizer=tokenizer.digest)


Batch = Mapping[str, np.ndarray]
Disguise = Callable[[int, Batch], Batch]


class MisfedTrainer(DishonestTrainer):
    """Receives the declared batches and trains on changed ones; `disguise` maps (step, batch) to the batch used."""

    def __init__(self, spec: Spec, disguise: Disguise) -> None:
        super().__init__(spec)
        self._disguise = disguise

    def step(self, micro_batches: Batches) -> Observation:
        """One step on changed data."""
        return super().step(self._disguise(self.index + 1, batch) for batch in micro_batches)


def backwards(_step: int, batch: Batch) -> Batch:
    """Every example in reverse order; labels of images stay."""
    if "inputs" in batch:
        return {name: values[..., ::-1] for name, values in batch.items()}
    return {**batch, "images": batch["images"][..., ::-1]}


def one_value_of(step: int) -> Disguise:
    """Exchanges one input value in one step: one token, or one pixel."""

    def disguise(index: int, batch: Batch) -> Batch:
        name = "inputs" if "inputs" in batch else "images"
        changed = np.array(batch[name])
        changed.flat[0] = 0 if changed.flat[0] else 1
        return {**batch, name: changed} if index == step else batch

    return disguise


def always_the_first() -> Disguise:
    """Repeats the first batch in every step."""
    seen: list[Batch] = []

    def disguise(_index: int, batch: Batch) -> Batch:
        seen.append(batch)
        return seen[0]

    return disguise


def training_on(disguise: Callable[[int], Disguise]) -> Forger:
    """A forger that continues from the middle anchor on other data; `disguise` receives the step to attack."""

    def forge(run: Path, out: Path) -> None:
        honest = RunDirectory(run)
        scene = find_scene(honest)
        train_on(run, out, scene.middle, MisfedTrainer(honest.spec(), disguise(scene.step)))

    return forge


def forge_file(run: Path, out: Path) -> None:
    """Exchange one token in the file of tokens."""
    forged = copy_run(run, out)

    def exchange(tokens: np.ndarray) -> np.ndarray:
        changed = np.array(tokens)
        changed[0] = 0 if changed[0] else 1
        return changed

    forge_tokens(forged.data_path, exchange)


UNSEEN = "records name the declared batches, and what was really read leaves no trace in an anchor"

DATA_SUBSTITUTED = (
    Attack(
        name="data-file-edited",
        change="one token in the file of tokens is exchanged",
        forge=forge_file,
        screens=rejected("data"),
        exact=rejected("data"),
        tolerant=rejected("data"),
        claim=rejected("data"),
    ),
    Attack(
        name="data-substituted",
        change="the second half learns from other text than the declared batches",
        forge=training_on(lambda _: backwards),
        screens=accepted(UNSEEN),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("loss", "weights residual"),
    ),
    Attack(
        name="one-token-substituted",
        change="one token of one batch is another than the declared one",
        forge=training_on(one_value_of),
        screens=accepted(UNSEEN),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="batch-repeated",
        change="the second half learns from the same batch in every step",
        forge=training_on(lambda _: always_the_first()),
        screens=accepted(UNSEEN),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("loss", "weights residual"),
    ),
)


# The run is made again on other data and is consistent in itself.


def forge_recommitted(run: Path, out: Path) -> None:
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

DATA_RECOMMITTED = (
    Attack(
        name="data-recommitted",
        change="the whole run is made anew on another text, to which it commits",
        forge=forge_recommitted,
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


# The run on a corpus is made again on tokens that do not come from the shards it commits to.

Exchange = Callable[[Tokens, int], np.ndarray]
"""Makes other tokens of those of a shard; the second argument is the token that ends documents."""


def retrained_on(exchange: Exchange) -> Forger:
    """A forger that trains honestly on other tokens of the first shard, under the commit of the honest corpus."""

    def forge(run: Path, out: Path) -> None:
        spec = RunDirectory(run).spec()
        if spec.data is None or spec.data.kind != "corpus":
            raise UsageError("this forgery exchanges tokens of a shard, and the data of this run is no corpus")
        recipe, forged = recipe_of(spec), copy_data(run, out)
        content = (forged.data_path / TOKENIZER_FILE).read_bytes()
        end = int(encoder_of(recipe.tokenizer, content, TokenizerFile).encode([""])[-1])
        data = _exchanged(forged.data_path, spec.data, lambda tokens: exchange(tokens, end))
        TrainingRun(forged, Spec.of(recipe, data)).record()

    return forge


def _exchanged(
    folder: Path, commitment: DatasetCommitment, exchange: Callable[[Tokens], np.ndarray]
) -> DatasetCommitment:
    """The commitment after the tokens of the first shard were exchanged in `folder`; that to the shards is kept."""
    listed = CorpusTokens.from_bytes((folder / TOKENS_LIST).read_bytes())
    path = token_path(folder, 0)
    tokens, vocabulary = read_tokens(path)
    write_tokens(path, exchange(np.array(tokens)), vocabulary)
    first = replace(listed.shards[0], root=commit_tokens(*read_tokens(path)).root)
    listed = replace(listed, shards=(first, *listed.shards[1:]))
    (folder / TOKENS_LIST).write_bytes(listed.to_bytes())
    return replace(commitment, tokens=listed.commit(read_corpus_commit(folder / CORPUS_FILE)))


def of_another_shard(tokens: Tokens, _end: int) -> np.ndarray:
    """As many tokens of other documents: the same ones in reverse."""
    return tokens[::-1]


def with_two_documents_swapped(tokens: Tokens, end: int) -> np.ndarray:
    """The first two documents in the places of each other."""
    ends = np.flatnonzero(tokens == end)[:2] + 1
    return np.concatenate([tokens[ends[0] : ends[1]], tokens[: ends[0]], tokens[ends[1] :]])


def with_one_token_exchanged(tokens: Tokens, _end: int) -> np.ndarray:
    """The first token is another one."""
    return np.concatenate([tokens[:1] ^ 1, tokens[1:]])


UNREAD = "the screens do not read the shards"
FOUND = rejected("tokens of the corpus")


def _attack(name: str, change: str, exchange: Exchange) -> Attack:
    return Attack(
        name=name,
        change=change,
        forge=retrained_on(exchange),
        screens=accepted(UNREAD),
        exact=FOUND,
        tolerant=FOUND,
        reference="corpus",
    )


CORPUS_FORGED = (
    _attack(
        "corpus-shard-replaced",
        "the run on a corpus is made anew on other documents in the place of a whole shard",
        of_another_shard,
    ),
    _attack(
        "corpus-documents-swapped",
        "the run on a corpus is made anew with two documents of a shard in the places of each other",
        with_two_documents_swapped,
    ),
    _attack(
        "corpus-tokens-forged",
        "the run on a corpus is made anew with one token of a shard exchanged",
        with_one_token_exchanged,
    ),
)


# An undeclared batch is used for training between two recorded steps.

PACE = 0.1


class MoonlightingTrainer(DishonestTrainer):
    """Trains on one undeclared batch before a given step; all counters stay correct."""

    def __init__(self, spec: Spec, step: int) -> None:
        super().__init__(spec)
        self._before_step = step

    def step(self, micro_batches: Batches) -> Observation:
        """The declared step; before one of them an undeclared one."""
        batches = list(micro_batches)
        if self.index + 1 == self._before_step:
            self._learn_secretly(batches)
        return super().step(batches)

    def _learn_secretly(self, batches: list[Mapping[str, np.ndarray]]) -> None:
        super().step([backwards(0, batch) for batch in batches])
        self.index -= 1
        for slots in self.optimizer.state.values():
            if "step" in slots:
                slots["step"] -= 1


class CarefulTrainer(MoonlightingTrainer):
    """Moves the weights a little along the gradient of the undeclared batch, and does not touch the moments."""

    def _learn_secretly(self, batches: list[Mapping[str, np.ndarray]]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for batch in batches:
            self._accumulate(backwards(0, batch))
        pace = PACE * learning_rate(self.declared, self.index + 1)
        for weight in self.model.parameters():
            if weight.grad is not None:
                weight.data.sub_(weight.grad, alpha=pace / max(1e-12, float(weight.grad.abs().max())))


def forge_hidden_batch(run: Path, out: Path) -> None:
    """Take one undeclared step of the optimizer in the middle of a segment."""
    _forge_by(MoonlightingTrainer, run, out)


def forge_carefully(run: Path, out: Path) -> None:
    """Follow the gradient of an undeclared batch for a tenth of a step, without the optimizer."""
    _forge_by(CarefulTrainer, run, out)


def _forge_by(trainer: type[MoonlightingTrainer], run: Path, out: Path) -> None:
    honest = RunDirectory(run)
    scene = find_scene(honest)
    train_on(run, out, scene.middle, trainer(honest.spec(), scene.step))


HIDDEN_BATCH = (
    Attack(
        name="hidden-batch",
        change="an undeclared batch is learned between two recorded steps; all counters stay right",
        forge=forge_hidden_batch,
        screens=rejected("second moment"),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="hidden-batch-careful",
        change="an undeclared batch moves the weights by a tenth of a step at most, past the optimizer's moments",
        forge=forge_carefully,
        screens=accepted("moments are untouched and the weights stay within reach"),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
)
