"""Data with a root: artifacts, ordered records, tokens, and the order in which they are trained on."""

from __future__ import annotations

from tallystick.datasets.accounting import TargetAccount, check_batches, count_targets
from tallystick.datasets.archive import (
    check_directory,
    check_tar,
    commit_directory,
    commit_path,
    read_commit,
    write_commit,
)
from tallystick.datasets.artifact import ArtifactCommit, Member, check_commit
from tallystick.datasets.bpe import decode_tokens, encode_text
from tallystick.datasets.commitment import DatasetCommitment, DatasetKind
from tallystick.datasets.digits import load_digits
from tallystick.datasets.opened import open_dataset, open_record, read_tokenizer
from tallystick.datasets.order import BatchPlan
from tallystick.datasets.prepare import commit_source, prepare
from tallystick.datasets.records import RecordCommit, RecordOpening, RecordTree, check_record, prove_record
from tallystick.datasets.samples import Dataset, ExampleDataset, TokenDataset
from tallystick.datasets.tokenizer import Tokenizer
from tallystick.datasets.tokens import TokensCommit, commit_tokens, read_tokens, write_tokens
from tallystick.datasets.verify import (
    BpeTraining,
    check_stated_tokenizer,
    verify_data,
    verify_tokenizer,
    verify_tokens,
)

__all__ = [
    "ArtifactCommit",
    "BatchPlan",
    "BpeTraining",
    "Dataset",
    "DatasetCommitment",
    "DatasetKind",
    "ExampleDataset",
    "Member",
    "RecordCommit",
    "RecordOpening",
    "RecordTree",
    "TargetAccount",
    "TokenDataset",
    "Tokenizer",
    "TokensCommit",
    "check_batches",
    "check_commit",
    "check_directory",
    "check_record",
    "check_stated_tokenizer",
    "check_tar",
    "commit_directory",
    "commit_path",
    "commit_source",
    "commit_tokens",
    "count_targets",
    "decode_tokens",
    "encode_text",
    "load_digits",
    "open_dataset",
    "open_record",
    "prepare",
    "prove_record",
    "read_commit",
    "read_tokenizer",
    "read_tokens",
    "verify_data",
    "verify_tokenizer",
    "verify_tokens",
    "write_commit",
    "write_tokens",
]
