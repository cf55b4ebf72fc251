"""Fingerprints: lossy summaries of hidden states, compared by distance."""

from tallystick.tolerances.fingerprints.settings import PUBLIC_SEED, Distance, FingerprintSettings
from tallystick.tolerances.fingerprints.wire import encode_rows, encode_summaries, measure, wire_bytes

__all__ = [
    "PUBLIC_SEED",
    "Distance",
    "FingerprintSettings",
    "encode_rows",
    "encode_summaries",
    "measure",
    "wire_bytes",
]
