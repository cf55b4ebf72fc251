"""Between the game and real runs: manifests, what a prover opens, what a challenger doubts, who is at fault."""

from tallystick.disputes.opened.doubting import OpenedDoubter, doubter_for
from tallystick.disputes.opened.judging import Judge
from tallystick.disputes.opened.manifest import Manifest, blobs_of, fetch, files_of, manifest_digest, publish
from tallystick.disputes.opened.traces import trace_for

__all__ = [
    "Judge",
    "Manifest",
    "OpenedDoubter",
    "blobs_of",
    "doubter_for",
    "fetch",
    "files_of",
    "manifest_digest",
    "publish",
    "trace_for",
]
