"""What a recording is given beside the loop: the checkpoint and the rows that it names, and where anchors are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tallystick.frameworks.torch.ema import Ema
from tallystick.recorders.rows import RowFinder
from tallystick.store.keeping import ALL_HERE, AnchorKeeping
from tallystick.store.origin import open_origin
from tallystick.workloads.origin import Origin


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
