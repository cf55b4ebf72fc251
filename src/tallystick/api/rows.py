"""`tallystick.write_rows`: conversations of a corpus as rows that a Trainer takes."""

from __future__ import annotations

from pathlib import Path

from tallystick.frameworks.torch.row_dataset import RowsDataset
from tallystick.recorders.rows import write_rows as write_folder


def write_rows(
    corpus: Path | str, model: Path | str, out: Path | str, *, length: int, **settings: object
) -> RowsDataset:
    """Make rows of the conversations of a corpus, and return them.

    Args:
        corpus: a directory of shards, JSONL (also compressed) or Parquet; each record holds a list of turns.
        model: the directory whose tokenizer and chat template are used.
        out: a directory that is empty or not there.
        length: the number of tokens of each row; longer conversations are cut, shorter ones padded.
        **settings: `field` (by default "messages"), `trained` ("assistant" or "all"), `seed` of the order, `pad`, and
            `packing` ("apart" or "joined"): several conversations in a row, as many as fit.

    Raises:
        UsageError: `out` is not empty.
        MalformedError: a shard, the tokenizer or the template is not what it should be, or a setting is unknown.
        UnavailableError: a file or a library is missing.
    """
    write_folder(Path(corpus), Path(model), Path(out), length=length, **settings)
    return RowsDataset(out)
