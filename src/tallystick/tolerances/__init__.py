"""Tolerances: what is recorded about a tensor or a state, and when a replay agrees with it."""

from tallystick.tolerances.agreement import agreement_probability, mismatch_rate
from tallystick.tolerances.bucket import Bucket, BucketClaim
from tallystick.tolerances.confidence import at_least, clopper_pearson
from tallystick.tolerances.dual import DualBucket
from tallystick.tolerances.evidence import Likelihoods, MismatchTest, Trials
from tallystick.tolerances.exact import Exact
from tallystick.tolerances.grids import Mode, bucket_codes
from tallystick.tolerances.hints import Hints, TensorHints, encode_hints, parse_hints
from tallystick.tolerances.loss import LossBand, Quantised, quantise
from tallystick.tolerances.mismatches import count_mismatches
from tallystick.tolerances.projection import Projection
from tallystick.tolerances.reach import direction_bound, reach_adamw, reach_sgd
from tallystick.tolerances.residual import Residual, ResidualLimits
from tallystick.tolerances.screens import moment_cosine, second_moment_floor, update_profile
from tallystick.tolerances.tolerance import Finding, Replayed, ReplayedState, StateTolerance, Tolerance

__all__ = [
    "Bucket",
    "BucketClaim",
    "DualBucket",
    "Exact",
    "Finding",
    "Hints",
    "Likelihoods",
    "LossBand",
    "MismatchTest",
    "Mode",
    "Projection",
    "Quantised",
    "Replayed",
    "ReplayedState",
    "Residual",
    "ResidualLimits",
    "StateTolerance",
    "TensorHints",
    "Tolerance",
    "Trials",
    "agreement_probability",
    "at_least",
    "bucket_codes",
    "clopper_pearson",
    "count_mismatches",
    "direction_bound",
    "encode_hints",
    "mismatch_rate",
    "moment_cosine",
    "parse_hints",
    "quantise",
    "reach_adamw",
    "reach_sgd",
    "second_moment_floor",
    "update_profile",
]
