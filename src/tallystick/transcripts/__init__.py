"""Specs, environments, records, their order, and the claim over them."""

from tallystick.transcripts.chain import Chain
from tallystick.transcripts.claim import Claim, Log
from tallystick.transcripts.door import Document
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.inference import InferenceClaim, call_file
from tallystick.transcripts.model_card import ModelCard
from tallystick.transcripts.opening import OpenedOperator, Opening, state_digest_of
from tallystick.transcripts.plan import batch_plan, classes, micro_batches, open_data, projection_seed
from tallystick.transcripts.program import StepProgram, recipe_program, schedule_tensors
from tallystick.transcripts.receipt import Fingerprint, Receipt, SignedReceipt, StatesCommitment, tokens_digest
from tallystick.transcripts.recipe import Recipe, RecordRecipe
from tallystick.transcripts.record import (
    AnchorRecord,
    Batch,
    CallRecord,
    FailedRecord,
    HeaderRecord,
    Knobs,
    OperatorRecord,
    Record,
    StepRecord,
    TraceEntry,
    anchor_file,
    batch_file,
    read_record,
)
from tallystick.transcripts.replayer import ReplayedStep, Replayer
from tallystick.transcripts.rule import GroupRule
from tallystick.transcripts.sampler import Sampler
from tallystick.transcripts.schedule import learning_rate
from tallystick.transcripts.spec import Spec
from tallystick.transcripts.summary import BucketSummary, StateSummary, decode_sketch, encode_sketch

__all__ = [
    "AnchorRecord",
    "Batch",
    "BucketSummary",
    "CallRecord",
    "Chain",
    "Claim",
    "Document",
    "Environment",
    "FailedRecord",
    "Fingerprint",
    "GroupRule",
    "HeaderRecord",
    "InferenceClaim",
    "Knobs",
    "Log",
    "ModelCard",
    "OpenedOperator",
    "Opening",
    "OperatorRecord",
    "Receipt",
    "Recipe",
    "Record",
    "RecordRecipe",
    "ReplayedStep",
    "Replayer",
    "Sampler",
    "SignedReceipt",
    "Spec",
    "StateSummary",
    "StatesCommitment",
    "StepProgram",
    "StepRecord",
    "TraceEntry",
    "anchor_file",
    "batch_file",
    "batch_plan",
    "call_file",
    "classes",
    "decode_sketch",
    "encode_sketch",
    "learning_rate",
    "micro_batches",
    "open_data",
    "projection_seed",
    "read_record",
    "recipe_program",
    "schedule_tensors",
    "state_digest_of",
    "tokens_digest",
]
