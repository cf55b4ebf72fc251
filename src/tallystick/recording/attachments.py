"""What a recording is given beside the loop: the first weights, the rows of its batches, and where anchors are kept."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tallystick.core.digests import Digest, Hash
from tallystick.core.errors import UnavailableError
from tallystick.core.tensors import State, in_dtype
from tallystick.engines.torch.training.trainer import Trainer
from tallystick.engines.torch.wrappers import Ema
from tallystick.formats.data.rows import COMMITTED_FILES, CommittedRows, leaves_of_batch, parts_of, read_rows
from tallystick.formats.spec import Origin
from tallystick.formats.store.directories import open_origin
from tallystick.formats.store.keeping import ALL_HERE, AnchorKeeping
from tallystick.formats.store.run import RunDirectory
from tallystick.recording.boundary import warn
from tallystick.verdicts.first_weights import compare_first_weights

NO_ROWS: Final = "the audit cannot say which data it was"


class RowFinder:
    """Finds the positions of a batch's rows among committed rows, and says once where there are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows: CommittedRows = read_rows(folder)
        self._places: dict[Hash, int] = {leaf: place for place, leaf in enumerate(self.rows.leaves)}
        self._said = False

    def keep(self, run: RunDirectory) -> Digest:
        """Copy what commits to the rows into a run; the digest of the rows recipe."""
        run.data_path.mkdir(parents=True, exist_ok=True)
        for name in COMMITTED_FILES:
            if (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, run.data_path / name)
        return self.rows.recipe.identity

    def positions(self, batch: State) -> tuple[int, ...] | None:
        """Where the rows of a batch stand; `None`, after one warning, where one of them is no row."""
        leaves = leaves_of_batch(batch, self.rows.recipe)
        found = [self._places.get(leaf) for leaf in leaves or ()]
        places = tuple(place for place in found if place is not None)
        if leaves and len(places) == len(leaves):
            return places
        if not self._said:
            self._said = True
            parts = ", ".join(parts_of(self.rows.recipe))
            held = "a row of it is none of them" if leaves else f"it holds not only {parts}"
            warn(f"a batch is not of the rows of {self._folder}: {held}; {NO_ROWS}")
        return None


@dataclass(frozen=True)
class Attachments:
    """What is given of the origin of the first weights, the rows of the batches and the averages; and the anchors."""

    origin: Origin | None = None
    rows: RowFinder | None = None
    keeping: AnchorKeeping = ALL_HERE
    ema: Ema | None = None

    @classmethod
    def open(cls, initial: str | Path | None, data: str | Path | None, keep: str | None, anchors: str | None) -> Self:
        """Open the directories that a user names.

        Raises `UsageError` for a `keep` that is none, `UnavailableError` where `initial` holds no weights or `data` no
        rows.
        """
        return cls(
            None if initial is None else open_origin(Path(initial)),
            None if data is None else RowFinder(Path(data)),
            AnchorKeeping.of(keep, anchors),
        )


NOTHING: Final = Attachments()


# Where the first weights of a training come from: stated in its spec after a comparison, or loaded into a trainer.


def stated_digest(origin: Origin, state: State) -> Digest | None:
    """The digest for the spec if `state` holds the weights of the origin; otherwise a warning, and None."""
    found = compare_first_weights(state, origin.weights)
    if found.agrees:
        return origin.digest
    what = f"{found.differing[0]} differs" if found.differing else f"it holds nowhere {found.missing[0]}"
    warn(f"the run does not state that it began with {origin.path}: {what}; load the model from there before recording")
    return None


def begin_with(trainer: Trainer, origin: Origin) -> None:
    """Give a trainer at its first step the weights of an origin, in the trainer's precision.

    Raises `UnavailableError` where the model of the recipe is not that of the origin.
    """
    state = dict(trainer.state())
    found = compare_first_weights(state, origin.weights)
    for place, wanted in found.places.items():
        given = in_dtype(wanted, state[place].dtype)
        if given is None or given.shape != state[place].shape:
            ours, theirs = (f"{each.dtype} {list(each.shape)}" for each in (state[place], wanted))
            raise UnavailableError(f"{origin.path}: {place} is {theirs}, and {ours} in the recipe's model")
        state[place] = given
    if found.missing:
        raise UnavailableError(f"{origin.path}: the recipe's model has no {found.missing[0]}")
    trainer.restore(state)
