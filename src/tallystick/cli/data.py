"""`tally commit`, `tally verify-data`, `tally prove-data`, `tally targets`: data and what is known about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tallystick.cli.options import ALWAYS_JSON, JSON

if TYPE_CHECKING:
    from tallystick.commitments.digests import Digest
    from tallystick.store.run import RunDirectory
    from tallystick.transcripts.dataset import DatasetCommitment


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command()(commit)
    app.command(name="verify-data")(verify_data)
    app.command(name="prove-data")(prove_data)
    app.command()(targets)


def commit(
    path: Path = typer.Argument(help="A directory, a JSONL file or a text file."),
    out: Path | None = typer.Option(None, help="Where the commitment goes; commit.json beside PATH by default."),
    verify: Path | None = typer.Option(None, "--verify", help="A commitment to check PATH against."),
    json: bool = JSON,
) -> None:
    """Commit to a file or directory by one digest.

    The commitment holds the digest, a Merkle root over ordered chunks and a count. With --verify, an existing
    commitment is checked.
    """
    from tallystick.cli.output import existing, show, talk
    from tallystick.documents.targets import require_writable

    target = out or path.absolute().parent / "commit.json"
    if verify is None:
        require_writable(target, makes_folders=True)
    digest = (_commit_directory if existing(path, "file or directory").is_dir() else _commit_file)(path, target, verify)
    talk().print(f"{path}: agrees with {verify}" if verify else f"{path}: committed in {target}")
    show({"commit": str(digest), "file": str(verify or target), "path": str(path)}, digest, json)


def _commit_directory(path: Path, target: Path, verify: Path | None) -> Digest:
    from tallystick.datasets.archive import commit_directory, read_commit, write_commit
    from tallystick.datasets.artifact import check_commit

    found = commit_directory(path)
    if verify is not None:
        check_commit(read_commit(verify), found)
    else:
        write_commit(found, path, target)
    return found.digest


def _commit_file(path: Path, target: Path, verify: Path | None) -> Digest:
    from tallystick.commitments.encoding import decode, encode
    from tallystick.datasets.preparation import commit_source
    from tallystick.documents.files import read_document, write_atomically
    from tallystick.errors import ProofError
    from tallystick.transcripts.dataset import RecordCommit

    found = commit_source("jsonl" if path.suffix == ".jsonl" else "text", path)
    if verify is None:
        write_atomically(target, encode(found.to_json()) + b"\n")
    elif (
        claimed := RecordCommit.from_json(decode(read_document(verify).removesuffix(b"\n"), verify.name), verify.name)
    ) != found:
        raise ProofError(f"{path}: {found.count} records under another root than the {claimed.count} committed")
    return found.digest


def verify_data(run: Path = typer.Argument(help="A run directory."), json: bool = JSON) -> None:
    """Tokenize the source of a run again and compare.

    The tokenizer is trained again too; every merge and every token is compared.
    """
    from tallystick.cli.output import show, talk
    from tallystick.datasets.verify import verify_data
    from tallystick.errors import UsageError
    from tallystick.store.folders import RUN, require_folder
    from tallystick.store.run import RunDirectory

    directory = RunDirectory(require_folder(run, RUN))
    commitment = directory.spec().data
    if commitment is None:
        raise UsageError(f"{run}: recorded from a custom loop; it commits to batches, not to a source")
    verify_data(directory.data_path, commitment)
    if commitment.tokens is not None:
        _verify_tokenizer(directory, commitment)
    talk().print(f"{run}: source, tokenizer and {commitment.count} tokens or examples agree")
    show({"count": commitment.count, "root": str(commitment.root), "run": str(run)}, commitment.root, json)


def _verify_tokenizer(run: RunDirectory, commitment: DatasetCommitment) -> None:
    from importlib.metadata import version

    from tallystick.datasets.verify import BpeTraining, verify_tokenizer
    from tallystick.frameworks.tokenizers import train_bpe

    recipe = run.spec().recipe
    assert recipe is not None  # only a recipe has data
    training = BpeTraining(train_bpe, version("tokenizers"), run.environment().package("tokenizers"))
    verify_tokenizer(run.data_path, commitment, recipe.tokenizer.kind, recipe.tokenizer.vocabulary, training)


def prove_data(
    run: Path = typer.Argument(help="A run directory."),
    index: int = typer.Option(..., min=0, help="The record's position, from 0."),
    json: bool = ALWAYS_JSON,
) -> None:
    """Prove that a record is in the committed data.

    Prints the record, its position and its inclusion proof.
    """
    from tallystick.cli.output import print_json
    from tallystick.datasets.record_opening import check_record, open_record
    from tallystick.errors import UsageError
    from tallystick.store.folders import RUN, require_folder
    from tallystick.store.run import RunDirectory

    directory = RunDirectory(require_folder(run, RUN))
    commitment = directory.spec().data
    if commitment is None:
        raise UsageError(f"{run}: recorded from a custom loop; it commits to batches, not to a source")
    opening = open_record(directory.data_path, commitment, index)
    check_record(opening, commitment.source)
    print_json(opening.to_json())


def targets(
    run: Path = typer.Argument(help="A run directory."),
    json: bool = JSON,
) -> None:
    """Count how often each example was trained on.

    The counts come from the records of the run; an example may be a window of text.
    """
    import numpy as np

    from tallystick.cli.output import page, print_json
    from tallystick.datasets.accounting import count_targets
    from tallystick.errors import UsageError
    from tallystick.store.folders import RUN, require_folder
    from tallystick.store.log import read_lines
    from tallystick.store.run import RunDirectory
    from tallystick.transcripts.record import StepRecord, read_record
    from tallystick.workloads.plan import batch_plan, open_data

    directory = RunDirectory(require_folder(run, RUN))
    spec = directory.spec()
    if spec.recipe is None:
        raise UsageError(f"{run}: recorded from a custom loop; its records hold no positions")
    plan = batch_plan(spec, open_data(spec, directory.data_path))
    records = (read_record(line, "transcript.jsonl") for line in read_lines(directory.transcript_path))
    batches = (np.asarray(r.batch.indices or (), np.int64) for r in records if isinstance(r, StepRecord))
    account = count_targets(batches, plan)
    if json:
        print_json(account.to_json())
        return
    for times, windows in sorted(account.histogram().items()):
        page().print(f"{windows} windows were targets {times} times")
