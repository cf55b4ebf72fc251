"""Specs, environments, records, their order, and the claim over them."""

from tallystick.transcripts.chain import Chain
from tallystick.transcripts.claim import Claim, Log
from tallystick.transcripts.door import Document
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.plan import batch_plan, classes, micro_batches, open_data, projection_seed
from tallystick.transcripts.recipe import Recipe, RecordRecipe
from tallystick.transcripts.record import (
    AnchorRecord,
    Batch,
    FailedRecord,
    HeaderRecord,
    Knobs,
    Record,
    StepRecord,
    TraceEntry,
    anchor_file,
    read_record,
)
from tallystick.transcripts.replayer import ReplayedStep, Replayer
from tallystick.transcripts.schedule import learning_rate
from tallystick.transcripts.spec import Spec
from tallystick.transcripts.summary import BucketSummary, StateSummary, decode_sketch, encode_sketch

__all__ = [
    "AnchorRecord",
    "Batch",
    "BucketSummary",
    "Chain",
    "Claim",
    "Document",
    "Environment",
    "FailedRecord",
    "HeaderRecord",
    "Knobs",
    "Log",
    "Recipe",
    "Record",
    "RecordRecipe",
    "ReplayedStep",
    "Replayer",
    "Spec",
    "StateSummary",
    "StepRecord",
    "TraceEntry",
    "anchor_file",
    "batch_plan",
    "classes",
    "decode_sketch",
    "encode_sketch",
    "learning_rate",
    "micro_batches",
    "open_data",
    "projection_seed",
    "read_record",
]
