"""A run of a custom training loop whose batches, rates, rules or final weights are not those of its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.formats.claims import Claim, Withdrawn
from tallystick.formats.records import Batch, StepRecord, batch_file
from tallystick.formats.store.directories import SINGLE
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.loop.own_loop import record_training
from tallystick.tally.attacks.forging import (
    Attack,
    accepted,
    anchor_before,
    copy_run,
    find_scene,
    inconclusive,
    place_of_step,
    read_anchor,
    read_records,
    rejected,
    replace_anchor,
    seal,
    write_records,
)
from tallystick.tally.attacks.states import take_back
from tallystick.tally.attacks.step_graphs import program_of, remake

# The reference run of a custom training loop: a language model of two layers, with step graph and batches.

TOKENS, WIDTH, ROWS, SEQUENCE = 32, 16, 8, 12
STEPS, STRIDE = 24, 6
CLIP = 0.01
CLASS_WEIGHTS = tuple(0.5 + token / TOKENS for token in range(TOKENS))


def train_loop(
    out: Path,
    data_seed: int = 5,
    *,
    scheduled: bool = False,
    clips: float | None = None,
    autocast: bool = False,
    undecayed_from: int = STEPS,
    initial: Path | None = None,
) -> None:
    """Record the loop into `out`.

    Another `data_seed` gives other batches. The other arguments turn on what real loops do: a schedule, clipping,
    autocast, and weight decay that ends at step `undecayed_from`. The first weights are written to `initial`, which the
    spec then states.
    """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(TOKENS, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 if scheduled else 1.0)
    data = batches(data_seed)
    if initial is not None:
        initial.mkdir(parents=True)
        weights = {name: Tensor.of(value.numpy()) for name, value in model.state_dict().items()}
        write_state(initial / SINGLE, weights)
    captured = {"loss": loss_of, "example": data[0], "initial": initial}
    recording = record_training(out, model, optimizer, anchor_stride=STRIDE, **captured)
    with recording as recorder:
        for step, batch in enumerate(data):
            if step == undecayed_from:
                optimizer.param_groups[0]["weight_decay"] = 0.0
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of(model, batch)
            loss.backward()
            if clips is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clips)
            optimizer.step()
            schedule.step()
            recorder.step(loss, batch)


def loss_of(model: Any, batch: Any) -> Any:
    """Cross entropy of the next token, with constant class weights."""
    import torch

    inputs, targets = batch
    weights = torch.tensor(CLASS_WEIGHTS)
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), weight=weights)


def batches(seed: int) -> list[Any]:
    """Batches of random tokens I64[ROWS, SEQUENCE]; each target is a fixed function of its token."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(0, TOKENS, (ROWS, SEQUENCE), generator=generator) for _ in range(STEPS)]
    return [(tokens, (3 * tokens + 1) % TOKENS) for tokens in drawn]


# A run of a custom training loop whose batches, rates or rules are not those of its steps.

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

LOOP_BATCHES = (
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


# The final weights of a loop are edited, and the last segment, which would show it, cannot be replayed by anybody.

EXCUSE = "the loop does something else"


def forge_end_withdrawn(run: Path, out: Path) -> None:
    """Edit the final weights, and withdraw the graph of the last steps."""
    forged, last = _edited(run, out)
    withdraw(forged, anchor_before(forged, last) + 1, last)


def forge_end_without_batch(run: Path, out: Path) -> None:
    """Edit the final weights, and delete the batch of the last step."""
    forged, last = _edited(run, out)
    (forged.path / file_of(forged, last)).unlink()


def withdraw(forged: RunDirectory, first: int, last: int) -> None:
    """Withdraw the graph of these steps in the claim."""
    claim: Claim = seal(forged)
    withdrawn = (Withdrawn(first=first, last=last, reason=EXCUSE),)
    write_atomically(forged.claim_path, claim.model_copy(update={"withdrawn": withdrawn}).to_bytes())


def _edited(run: Path, out: Path) -> tuple[RunDirectory, int]:
    forged = copy_run(run, out)
    if forged.spec().recipe is not None:
        raise UsageError("this forgery needs a run of a custom training loop")
    last = find_scene(forged).last
    replace_anchor(forged, last, take_back(read_anchor(forged, anchor_before(forged, last)), read_anchor(forged, last)))
    return forged, last


END_NOT_REPLAYED = accepted("no step is taken")
LOOSE = inconclusive("nobody can replay the last segment, and nothing else ties the final weights to the run")

LOOP_END = (
    Attack(
        name="loop-end-withdrawn",
        change="the final weights are edited after training, and the claim withdraws the graph of the last steps",
        forge=forge_end_withdrawn,
        reference="loop",
        screens=END_NOT_REPLAYED,
        exact=LOOSE,
        tolerant=LOOSE,
    ),
    Attack(
        name="loop-end-without-batch",
        change="the final weights are edited after training, and the batch of the last step is deleted",
        forge=forge_end_without_batch,
        reference="loop",
        screens=END_NOT_REPLAYED,
        exact=LOOSE,
        tolerant=LOOSE,
    ),
)
