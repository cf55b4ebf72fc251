"""A fingerprint as it stands in a receipt: made from hidden states, and compared with a verifier's own."""

from __future__ import annotations

import base64

from tallystick.errors import MalformedError, UsageError
from tallystick.tolerances.fingerprints.logits import logit_rows
from tallystick.tolerances.fingerprints.settings import PUBLIC_SEED, Distance, FingerprintSettings, Rows
from tallystick.tolerances.fingerprints.wire import measure
from tallystick.transcripts.receipt import Fingerprint
from tallystick.workloads.language_model import Prefill


def make_fingerprint(rows: Rows, settings: FingerprintSettings) -> Fingerprint:
    """The fingerprint of answer tokens, from the hidden states they were chosen from, [tokens, d] by layer.

    Raises:
        MalformedError: a layer is not there, or their numbers of tokens differ.
        UnavailableError: a hidden state is not finite or too large.
    """
    from tallystick.tolerances.fingerprints.making import encode_rows  # a verifier only compares

    return fingerprint_of(encode_rows(rows, settings), len(rows[settings.layers[0]]), settings)


def fingerprint_of(data: bytes, tokens: int, settings: FingerprintSettings) -> Fingerprint:
    """The document around a wire form."""
    return Fingerprint(
        method=settings.method,
        layers=settings.layers,
        block=settings.block,
        tokens=tokens,
        width=settings.width,
        bits=settings.bits,
        seed=settings.seed,
        grid=settings.grid,
        data=base64.b64encode(data).decode(),
    )


def settings_of(fingerprint: Fingerprint) -> FingerprintSettings:
    """What a claimed fingerprint was made with; raises `MalformedError` naming the field that cannot be."""
    try:
        return FingerprintSettings(
            fingerprint.method,
            fingerprint.layers,
            fingerprint.block,
            fingerprint.width,
            fingerprint.bits,
            fingerprint.seed,
            fingerprint.grid,
        )
    except UsageError as error:
        raise MalformedError(f"fingerprint.{error}") from None


def rows_for(fingerprint: Fingerprint, passed: Prefill, final: int) -> Rows:
    """The verifier's own rows [tokens, d] of a fingerprint, by layer, from a pass whose last rows are the answer's.

    `final` is the layer number of the final norm. The layer behind it is the logits, by the fingerprint's seed; for a
    fingerprint without a seed, by the public one.
    """
    rows = {layer: each[-fingerprint.tokens :] for layer, each in passed.hidden.items()}
    if final + 1 in fingerprint.layers:
        rows[final + 1] = logit_rows(passed.logits[-fingerprint.tokens :], fingerprint.seed or PUBLIC_SEED)
    return rows


def distances(fingerprint: Fingerprint, rows: Rows) -> tuple[Distance, ...]:
    """How far the verifier's own rows [tokens, d] lie from a claimed fingerprint, block by block and layer by layer.

    Raises:
        MalformedError: the fingerprint is not of that many tokens, or no fingerprint.
        UnavailableError: the verifier's own hidden states are not finite.
    """
    settings = settings_of(fingerprint)
    counts = {len(rows[layer]) for layer in settings.layers if layer in rows}
    if counts != {fingerprint.tokens}:
        raise MalformedError(f"fingerprint.tokens: {fingerprint.tokens}, and the answer has {sorted(counts)}")
    return measure(fingerprint.raw, rows, settings)
