"""Claims: what is not there leaves no trace in the bytes, and a withdrawn graph has a reason of one length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tallystick.core.canonical_json import encode
from tallystick.core.errors import MalformedError
from tallystick.formats.claims import Claim

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "claim" / "claims.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["case"])
def test_a_claim_is_its_bytes_and_has_one_digest(vector: dict[str, str]) -> None:
    claim = Claim.from_bytes(vector["bytes"].encode(), "claim")
    assert claim.identity == vector["digest"]
    assert ("no_graph" in vector["bytes"]) == (claim.no_graph is not None)


@pytest.mark.parametrize("reason", ["", "x" * 1025, None, 7])
def test_a_reason_that_is_none_is_refused(reason: object) -> None:
    document = json.loads(VECTORS[0]["bytes"]) | {"no_graph": reason}
    with pytest.raises(MalformedError, match=r"no_graph|canonical"):
        Claim.from_bytes(encode(document), "claim")
