"""A run of a custom training loop whose batches, rates or rules are not those of its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tallystick.attacks.attack import Attack, accepted, inconclusive, rejected
from tallystick.attacks.forging import copy_run, find_scene, place_of_step, read_records, write_records
from tallystick.attacks.graph_forging import program_of, remake
from tallystick.attacks.loop_reference import train_loop
from tallystick.errors import UsageError
from tallystick.store.run import RunDirectory
from tallystick.tensors.digest import state_digest
from tallystick.tensors.safetensors import read_state, write_state
from tallystick.tensors.tensor import State, Tensor
from tallystick.transcripts.record import Batch, StepRecord, batch_file

RATE_EXCESS = 1.01


def forge_exchanged(run: Path, out: Path) -> None:
    """Replace the batch that a record names by that of another step."""
    forged = copy_run(run, out)
    step = find_scene(forged).step
    (forged.path / file_of(forged, step)).write_bytes((forged.path / file_of(forged, step + 1)).read_bytes())


def forge_withheld(run: Path, out: Path) -> None:
    """Delete one batch."""
    forged = copy_run(run, out)
    (forged.path / file_of(forged, find_scene(forged).step)).unlink()


def forge_renamed(run: Path, out: Path) -> None:
    """Change a record to name a batch that differs in one token, and save that batch."""
    forged = copy_run(run, out)
    step = find_scene(forged).step
    batch = dict(read_state(forged.path / file_of(forged, step)))
    name = tokens_of(batch)
    tokens = batch[name].array().copy()
    tokens.flat[0] = (tokens.flat[0] + 1) % 2
    batch[name] = Tensor.of(tokens)
    write_state(forged.path / batch_file(state_digest(batch)), batch)
    _rewrite_step(forged, lambda record: record.model_copy(update={"batch": Batch(digest=state_digest(batch))}))


def tokens_of(batch: State) -> str:
    """The name of the first tensor of whole numbers that is no mask; raises `UsageError` if there is none."""
    found = [name for name, tensor in sorted(batch.items()) if tensor.dtype.startswith("I") and "mask" not in name]
    if not found:
        raise UsageError("this forgery exchanges a token, and the batches of this run hold none")
    return found[0]


def forge_rate(run: Path, out: Path) -> None:
    """State a learning rate in one record that is 1 % above the real one."""
    forged = copy_run(run, out)
    _rewrite_step(
        forged, lambda record: record.model_copy(update={"learning_rate": RATE_EXCESS * record.learning_rate})
    )


def forge_rule(run: Path, out: Path) -> None:
    """State ten times the real weight decay in the spec."""
    spec, program = RunDirectory(run).spec(), program_of(run)
    if spec.optimizer is None:
        raise UsageError("this forgery needs a run of a custom training loop with a step graph")
    rules = tuple(rule.model_copy(update={"weight_decay": 10 * rule.weight_decay}) for rule in spec.optimizer)
    remake(run, out, program, program, spec.model_copy(update={"optimizer": rules}))


def forge_other_data(run: Path, out: Path) -> None:
    """Train honestly on batches of another seed than the run's."""
    RunDirectory(run).claim()
    train_loop(out, data_seed=6)


def file_of(run: RunDirectory, step: int) -> str:
    """The file of the batch of a step; raises `UsageError` if no batches are kept."""
    records = read_records(run)
    record = records[place_of_step(records, step)]
    assert isinstance(record, StepRecord)  # by `place_of_step`
    if record.batch.digest is None or not (run.path / batch_file(record.batch.digest)).exists():
        raise UsageError("this forgery needs the batches of a custom training loop, and this run keeps none")
    return batch_file(record.batch.digest)


def _rewrite_step(forged: RunDirectory, change: Callable[[StepRecord], StepRecord]) -> None:
    records = read_records(forged)
    place = place_of_step(records, find_scene(forged).step)
    record = records[place]
    assert isinstance(record, StepRecord)  # by `place_of_step`
    records[place] = change(record)
    write_records(forged, records)


NOT_READ = "a batch is read when its step is replayed"
NOT_REPLAYED = "no step is taken"
WITHHELD = "the step cannot be taken again without its batch, and the report says so"
OTHER_DATA = "it is an honest run on the batches it names; no recipe says which data they should be"

ATTACKS = (
    Attack(
        name="loop-batch-exchanged",
        change="the file of one batch holds the batch of another step",
        forge=forge_exchanged,
        reference="loop",
        screens=accepted(NOT_READ),
        exact=rejected("batch"),
        tolerant=rejected("batch"),
        claim=rejected("batch"),
    ),
    Attack(
        name="loop-batch-withheld",
        change="the file of one batch is deleted",
        forge=forge_withheld,
        reference="loop",
        screens=accepted(NOT_READ),
        exact=inconclusive(WITHHELD),
        tolerant=inconclusive(WITHHELD),
        claim=inconclusive(WITHHELD),
    ),
    Attack(
        name="loop-batch-renamed",
        change="one record names a batch that differs in one token from the one learned; that batch is kept; resealed",
        forge=forge_renamed,
        reference="loop",
        screens=accepted(NOT_READ),
        exact=rejected("loss", "projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="loop-rate-misstated",
        change="one record states a learning rate 1 % above the one that was used; resealed",
        forge=forge_rate,
        reference="loop",
        screens=accepted(NOT_REPLAYED),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="loop-rule-misstated",
        change="the spec states ten times the weight decay that was used; summaries, roots and claim are made anew",
        forge=forge_rule,
        reference="loop",
        screens=accepted(NOT_REPLAYED),
        exact=rejected("projection summary", "state"),
        tolerant=rejected("weights residual"),
    ),
    Attack(
        name="loop-data-recommitted",
        change="the whole run is made anew on other batches, which its records name",
        forge=forge_other_data,
        reference="loop",
        screens=accepted(OTHER_DATA),
        exact=accepted(OTHER_DATA),
        tolerant=accepted(OTHER_DATA),
    ),
)
