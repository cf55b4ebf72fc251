"""`tally commit`, `verify-data`, `prove-data`, `rows`, `targets`: data and what is known about it."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import typer

from tallystick.core import digests
from tallystick.core.canonical_json import Json, decode, encode
from tallystick.core.errors import ProofError, UsageError
from tallystick.core.files import FILE_BYTES_MAX, read_document, require_writable, write_atomically
from tallystick.engines import tokenizers
from tallystick.formats import dataset as datasets, records as record_forms
from tallystick.formats.data import (
    corpus as corpora,
    openings as data_openings,
    preparation,
    samples,
    step_program,
)
from tallystick.formats.store import log as logs, run as runs
from tallystick.recording import rows as row_writing
from tallystick.tally.cli.options import AlwaysJson, AsJson, CorpusDirectory, RunFolder, run_in
from tallystick.tally.cli.output import corpus_task, existing, page, print_json, progress_bar, show, talk


def commit(
    path: Path = typer.Argument(help="A directory of shards, a JSONL file or a text file."),
    out: Path | None = typer.Option(None, help="Where the commitment goes; commit.json beside PATH by default."),
    verify: Path | None = typer.Option(None, "--verify", help="A commitment to check PATH against."),
    recheck: bool = typer.Option(False, "--recheck", help="Also read shards that were hashed before."),
    json: AsJson = False,
) -> None:
    """Commit to a file or directory by one digest.

    The commitment holds the digest, a Merkle root over ordered chunks and a count. Shards of a directory that were
    hashed before are not read again. With --verify, an existing commitment is checked, and every byte is read.
    """
    target = out or path.absolute().parent / "commit.json"
    if verify is None:
        require_writable(target, makes_folders=True)
    if existing(path, "file or directory").is_dir():
        digest = _commit_directory(path, target, verify, recheck)
    else:
        digest = _commit_file(path, target, verify)
    talk().print(f"{path}: agrees with {verify}" if verify else f"{path}: committed in {target}")
    show({"commit": str(digest), "file": str(verify or target), "path": str(path)}, digest, json)


def _commit_directory(path: Path, target: Path, verify: Path | None, recheck: bool) -> digests.Digest:
    with progress_bar() as bar:
        hashed = corpus_task(bar, "hashing", path)
        if verify is None:
            return corpora.commit_corpus(path, target, recheck=recheck, hashed=hashed).corpus
        claimed = corpora.read_corpus_commit(verify)
        corpora.check_corpus(path, claimed, corpora.read_leaves(verify, claimed), hashed)
        return claimed.corpus


def _commit_file(path: Path, target: Path, verify: Path | None) -> digests.Digest:
    commit = preparation.commit_source("jsonl" if path.suffix == ".jsonl" else "text", path)
    if verify is None:
        written = encode(commit.to_json()) + b"\n"
        if target.exists() and read_document(target, FILE_BYTES_MAX) != written:
            raise UsageError(f"{target} holds another commit: remove it or choose another file with --out")
        write_atomically(target, written)
    elif (
        claimed := datasets.RecordCommit.from_json(
            decode(read_document(verify).removesuffix(b"\n"), verify.name), verify.name
        )
    ) != commit:
        raise ProofError(f"{path}: {commit.count} records under another root than the {claimed.count} committed")
    return commit.identity


def rows(
    corpus: Path = typer.Argument(help="A directory of shards with conversations: JSONL, also compressed, or Parquet."),
    model: Path = typer.Option(..., help="The directory whose tokenizer and chat template are used."),
    length: int = typer.Option(..., min=2, help="The tokens of each row; conversations are cut or padded."),
    out: Path = typer.Option(..., help="The folder to write the rows to."),
    field: str = typer.Option("messages", help="The member of a line, or the column, that holds the turns."),
    trained: str = typer.Option("assistant", help="The turns that have labels: assistant or all."),
    packing: str | None = typer.Option(None, help="Several conversations in a row: apart or joined."),
    seed: int = typer.Option(0, min=0, help="The seed of the order of the conversations."),
    json: AsJson = False,
) -> None:
    """Make rows of tokens and labels of conversations.

    With --packing, a row holds as many conversations as fit: apart, with positions that begin anew in each, or joined
    as one text. The rows are what a Trainer takes (`tallystick.rows`), and what a recorder names the batches by
    (`data=`).
    """
    settings = {"field": field, "trained": trained, "seed": seed, "packing": packing}
    made = row_writing.write_rows(existing(corpus, "directory"), model, out, length=length, **settings).recipe
    talk().print(f"{out}: {made.count} rows of {made.length} tokens, of the corpus {made.corpus}", soft_wrap=True)
    result: Json = {"corpus": str(made.corpus), "count": made.count, "out": str(out), "rows": str(made.identity)}
    show(result, str(made.identity), json)


def verify_data(run: RunFolder, corpus: CorpusDirectory = None, json: AsJson = False) -> None:
    """Tokenize the source of a run again and compare.

    The tokenizer is trained again too; every merge and every token is compared. A run on a corpus is checked with
    --corpus: all its shards are hashed and tokenized again.
    """
    directory = run_in(run)
    commitment = directory.spec().data
    if commitment is None:
        raise UsageError(f"{run}: recorded from a custom loop; it commits to batches, not to a source")
    if (commitment.kind == "corpus") != (corpus is not None):
        raise UsageError(f"{run}: --corpus names the directory of the shards, for a run on a corpus and for no other")
    if corpus is not None:
        _verify_corpus(directory, corpus, commitment)
    else:
        preparation.verify_data(directory.data_path, commitment)
        if commitment.tokens is not None:
            _verify_tokenizer(directory, commitment)
    talk().print(f"{run}: source, tokenizer and {commitment.count} tokens or examples agree")
    show({"count": commitment.count, "root": str(commitment.root), "run": str(run)}, commitment.root, json)


def _verify_corpus(run: runs.RunDirectory, directory: Path, commitment: datasets.DatasetCommitment) -> None:
    recipe = run.spec().recipe
    assert recipe is not None  # only a recipe has data
    versions = preparation.LibraryVersions(version("tokenizers"), run.environment().package("tokenizers"))
    place, read = existing(directory, "directory"), tokenizers.TokenizerFile
    check = preparation.CorpusCheck.open(run.data_path, place, commitment, recipe, read, versions)
    with progress_bar() as bar:
        check.check(range(len(check.corpus.shards)), corpus_task(bar, "checking", directory))


def _verify_tokenizer(run: runs.RunDirectory, commitment: datasets.DatasetCommitment) -> None:
    recipe = run.spec().recipe
    assert recipe is not None  # only a recipe has data
    versions = preparation.LibraryVersions(version("tokenizers"), run.environment().package("tokenizers"))
    preparation.verify_tokenizer(run.data_path, commitment, recipe.tokenizer, tokenizers.train_bpe, versions)


def prove_data(
    path: Path = typer.Argument(help="A run directory, or a corpus."),
    index: int = typer.Option(..., min=0, help="The position of the record, or of the chunk in its shard, from 0."),
    shard: str | None = typer.Option(None, help="In a corpus: the shard, by its name below PATH."),
    commit: Path | None = typer.Option(None, help="The commit of the corpus; commit.json beside PATH by default."),
    json: AlwaysJson = True,
) -> None:
    """Prove that a record is in the committed data.

    A record of a run, or a chunk of 1 MiB of a corpus.

    Prints the record or chunk, its position and its inclusion proof.
    """
    if (shard is None) and (commit is not None):
        raise UsageError("--commit belongs to a corpus: name the shard of the chunk with --shard")
    print_json(_prove_record(path, index) if shard is None else _prove_chunk(path, commit, shard, index))


def _prove_chunk(directory: Path, commit: Path | None, shard: str, index: int) -> Json:
    corpus = corpora.read_corpus_commit(commit or existing(directory, "directory").absolute().parent / "commit.json")
    opening = data_openings.open_chunk(directory, corpus, shard, index)
    data_openings.check_chunk(opening, corpus.commit)
    return opening.to_json()


def _prove_record(run: Path, index: int) -> Json:
    directory = run_in(run)
    commitment = directory.spec().data
    if commitment is None:
        raise UsageError(f"{run}: recorded from a custom loop; it commits to batches, not to a source")
    opening = data_openings.open_record(directory.data_path, commitment, index)
    data_openings.check_record(opening, commitment.source)
    return opening.to_json()


def targets(
    run: RunFolder,
    json: AsJson = False,
) -> None:
    """Count how often each example was trained on.

    The counts come from the records of the run; an example may be a window of text.
    """
    import numpy as np

    directory = run_in(run)
    spec = directory.spec()
    if spec.recipe is None:
        raise UsageError(f"{run}: recorded from a custom loop; its records hold no positions")
    plan = step_program.batch_plan(spec, step_program.open_data(spec, directory.data_path))
    records = (
        record_forms.read_record(line, "transcript.jsonl") for line in logs.read_lines(directory.transcript_path)
    )
    batches = (np.asarray(r.batch.indices or (), np.int64) for r in records if isinstance(r, record_forms.StepRecord))
    account = samples.target_account(samples.count_targets(batches, plan))
    if json:
        print_json(account)
        return
    for times, windows in account["samples_by_times"].items():
        page().print(f"{windows} windows were targets {times} times")
