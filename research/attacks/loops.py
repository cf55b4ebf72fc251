"""Runs of a custom training loop whose batches, rates, rules, beginning, end or claim are not those of its steps."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from research.attacks.graphs import program_of, remake
from tallystick.core.errors import UsageError
from tallystick.core.files import write_atomically
from tallystick.core.safetensors import read_state, write_state
from tallystick.core.tensor_digests import state_digest
from tallystick.core.tensors import State, Tensor
from tallystick.formats.claims import Withdrawn
from tallystick.formats.records import Batch, StepRecord, anchor_file, batch_file
from tallystick.formats.store.directories import SINGLE
from tallystick.formats.store.run import RunDirectory
from tallystick.programs.random_words import GOES_ON, STATE_SIDE, seeded
from tallystick.programs.step_names import GENERATOR, GENERATOR_MOVE
from tallystick.recording.loop.own_loop import record_training
from tallystick.tally.attacks.forgers import RATE_EXCESS, with_last_move_shortened
from tallystick.tally.attacks.forging import (
    Forger,
    anchor_before,
    copy_run,
    find_scene,
    place_of_step,
    read_anchor,
    read_records,
    replace_anchor,
    seal,
    with_value,
    write_records,
)

# The reference run of a custom training loop: a language model of two layers, with step graph and batches.

TOKENS, WIDTH, ROWS, SEQUENCE = 32, 16, 8, 12
STEPS, STRIDE = 24, 6
CLIP = 0.01
DROPOUT = 0.1
WORDS_SKIPPED = 41
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
    dropout: float = 0.0,
) -> None:
    """Record the loop into `out`.

    Another `data_seed` gives other batches. The other arguments turn on what real loops do: a schedule, clipping,
    autocast, dropout, and weight decay that ends at step `undecayed_from`. The first weights are written to `initial`,
    which the spec then states.
    """
    import torch

    torch.manual_seed(0)
    middle = [torch.nn.Tanh(), *([torch.nn.Dropout(dropout)] if dropout else [])]
    model = torch.nn.Sequential(torch.nn.Embedding(TOKENS, WIDTH), *middle, torch.nn.Linear(WIDTH, TOKENS))
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


# Batches, rates and rules that are not those of the steps.


def loop_batch_exchanged(run: Path, out: Path) -> None:
    """Replace the batch that a record names by that of another step."""
    forged = copy_run(run, out)
    step = find_scene(forged).step
    (forged.path / file_of(forged, step)).write_bytes((forged.path / file_of(forged, step + 1)).read_bytes())


def loop_batch_withheld(run: Path, out: Path) -> None:
    """Delete one batch."""
    forged = copy_run(run, out)
    (forged.path / file_of(forged, find_scene(forged).step)).unlink()


def loop_batch_renamed(run: Path, out: Path) -> None:
    """Change a record to name a batch that differs in one token, and save that batch."""
    forged = copy_run(run, out)
    batch = read_state(forged.path / file_of(forged, find_scene(forged).step))
    name = tokens_of(batch)
    batch = with_value(batch, name, 0, (batch[name].array().flat[0] + 1) % 2)
    write_state(forged.path / batch_file(state_digest(batch)), batch)
    _rewrite_step(forged, lambda record: record.model_copy(update={"batch": Batch(digest=state_digest(batch))}))


def loop_rate_misstated(run: Path, out: Path) -> None:
    """State a learning rate in one record that is 1 % above the real one."""
    forged = copy_run(run, out)
    _rewrite_step(
        forged, lambda record: record.model_copy(update={"learning_rate": RATE_EXCESS * record.learning_rate})
    )


def loop_rule_misstated(run: Path, out: Path) -> None:
    """State ten times the real weight decay in the spec."""
    spec, program = RunDirectory(run).spec(), program_of(run)
    if spec.optimizer is None:
        raise UsageError("this forgery needs a run of a custom training loop with a step graph")
    rules = tuple(rule.model_copy(update={"weight_decay": 10 * rule.weight_decay}) for rule in spec.optimizer)
    remake(run, out, program, program, spec.model_copy(update={"optimizer": rules}))


def tokens_of(batch: State) -> str:
    """The name of the first tensor of whole numbers that is no mask; raises `UsageError` if there is none."""
    names = [name for name, tensor in sorted(batch.items()) if tensor.dtype.startswith("I") and "mask" not in name]
    if not names:
        raise UsageError("this forgery exchanges a token, and the batches of this run hold none")
    return names[0]


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


# The final weights are edited, and the last segment, which would show it, cannot be replayed by anybody.


def loop_end_withdrawn(run: Path, out: Path) -> None:
    """Edit the final weights, and withdraw the graph of the last steps."""
    forged, last = _with_edited_end(run, out)
    withdraw(forged, anchor_before(forged, last) + 1, last)


def loop_end_without_batch(run: Path, out: Path) -> None:
    """Edit the final weights, and delete the batch of the last step."""
    forged, last = _with_edited_end(run, out)
    (forged.path / file_of(forged, last)).unlink()


def withdraw(forged: RunDirectory, first: int, last: int) -> None:
    """Withdraw the graph of these steps in the claim."""
    withdrawn = (Withdrawn(first=first, last=last, reason="the loop does something else"),)
    write_atomically(forged.claim_path, seal(forged).model_copy(update={"withdrawn": withdrawn}).to_bytes())


def _with_edited_end(run: Path, out: Path) -> tuple[RunDirectory, int]:
    forged = copy_run(run, out)
    if forged.spec().recipe is not None:
        raise UsageError("this forgery needs a run of a custom training loop")
    last = find_scene(forged).last
    replace_anchor(forged, last, with_last_move_shortened(forged, last))
    return forged, last


# The spec states a published checkpoint, and the run starts from another state.

Change = Callable[[dict[str, Tensor]], None]


def with_start(change: Change) -> Forger:
    """A forger that takes every step from a changed first state, under the spec that states the checkpoint."""

    def forge(run: Path, out: Path) -> None:
        spec, program = RunDirectory(run).spec(), program_of(run)
        if spec.initial is None:
            raise UsageError("this forgery needs a run of a custom training loop that states its first weights")
        with TemporaryDirectory() as folder:
            staged = Path(folder, "run")
            shutil.copytree(run, staged)
            start = read_anchor(RunDirectory(run), 0)
            change(start)
            write_state(staged / anchor_file(0), start)
            remake(staged, out, program, program, spec)

    return forge


def tunes(start: dict[str, Tensor]) -> None:
    """Train one weight further."""
    name = max(name for name in start if name.startswith("weights."))
    start[name] = Tensor.of(start[name].array() + np.float32(1e-3))


def plants_moments(start: dict[str, Tensor]) -> None:
    """Choose the first moment of one weight, so that the first step moves it where the prover likes."""
    name = max(name for name in start if name.endswith(".exp_avg"))
    start[name] = Tensor.of(start[name].array() + np.float32(1.0))


def counts_ahead(start: dict[str, Tensor]) -> None:
    """Begin to count the steps of the optimizer at a thousand: the first steps are not corrected for bias."""
    for name in (name for name in start if name.startswith("optimizer.") and name.endswith(".step")):
        start[name] = Tensor.of(start[name].array() + np.float32(1000))


loop_start_tuned = with_start(tunes)
loop_start_moments = with_start(plants_moments)
loop_start_counters = with_start(counts_ahead)


# Dropout as it comes: the generator of PyTorch is part of the state, and records say how it was moved between steps.


def loop_dropout_state_replaced(run: Path, out: Path) -> None:
    """Put the generator's state of another seed into a middle anchor."""
    forged = copy_run(run, out)
    mark = anchor_before(forged, find_scene(forged).last)
    state = read_anchor(forged, mark)
    _require_generator(state)
    replace_anchor(forged, mark, state | {GENERATOR: Tensor.of(seeded(1))})


def loop_dropout_words_misstated(run: Path, out: Path) -> None:
    """State in one record that words of the generator were skipped before its step."""
    forged = copy_run(run, out)
    _require_generator(read_anchor(forged, 0))
    _state_skipped_words(forged)


def loop_dropout_masks_searched(run: Path, out: Path) -> None:
    """Skip words of the generator before one step, as its record says, and take every step from there on anew."""
    _require_generator(read_anchor(RunDirectory(run), 0))
    with TemporaryDirectory() as folder:
        staged = copy_run(run, Path(folder, "run"))
        _state_skipped_words(staged)
        program = program_of(staged.path)
        remake(staged.path, out, program, program)


def loop_dropout_start_chosen(run: Path, out: Path) -> None:
    """Begin with a state of the generator that no seed gives, so that the first masks are chosen."""
    _require_generator(read_anchor(RunDirectory(run), 0))
    with TemporaryDirectory() as folder:
        staged = copy_run(run, Path(folder, "run"))
        chosen = Tensor.of(np.append(np.zeros(STATE_SIDE - 1, np.int64), 0))
        write_state(staged.path / anchor_file(0), read_anchor(staged, 0) | {GENERATOR: chosen})
        program = program_of(run)
        remake(staged.path, out, program, program)


def _require_generator(state: State) -> None:
    if GENERATOR not in state:
        raise UsageError("this forgery needs a run of a custom training loop with dropout from PyTorch's own generator")


def _state_skipped_words(forged: RunDirectory) -> None:
    batch = dict(read_state(forged.path / file_of(forged, find_scene(forged).step)))
    batch[GENERATOR_MOVE] = Tensor.of(np.asarray((GOES_ON, WORDS_SKIPPED), np.int64))
    write_state(forged.path / batch_file(state_digest(batch)), batch)
    _rewrite_step(forged, lambda record: record.model_copy(update={"batch": Batch(digest=state_digest(batch))}))


# Loops that are trained anew: honest ones, on other batches or departing from their step graph.


def trained_anew(**loop: Any) -> Forger:
    """A forger that trains the reference loop with these settings; an undeclared departure withdraws its graph."""

    def forge(run: Path, out: Path) -> None:
        RunDirectory(run).claim()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the run cannot be replayed", RuntimeWarning)
            train_loop(out, **loop)

    return forge


loop_data_recommitted = trained_anew(data_seed=6)
loop_schedule_before_record = trained_anew(scheduled=True)
loop_clipping_undeclared = trained_anew(clips=CLIP)
loop_autocast_around = trained_anew(autocast=True)
loop_decay_changed = trained_anew(undecayed_from=STEPS // 2)
loop_dropout_as_it_comes = trained_anew(dropout=DROPOUT)


# The claim withdraws the step graph, to avoid a replay.


def loop_graph_excused(run: Path, out: Path) -> None:
    """State another learning rate than the real one, and withdraw the graph that would show it."""
    loop_rate_misstated(run, out)
    _excuse(RunDirectory(out))


def recipe_graph_excused(run: Path, out: Path) -> None:
    """Withdraw the step graph of a run from a recipe."""
    forged = copy_run(run, out)
    if forged.spec().recipe is None:
        raise UsageError("this forgery needs a run from a recipe")
    _excuse(forged)


def _excuse(forged: RunDirectory) -> None:
    claim = seal(forged).model_copy(update={"no_graph": "step 1: the loop does something else"})
    write_atomically(forged.claim_path, claim.to_bytes())
