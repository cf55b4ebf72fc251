from __future__ import annotations

import hashlib
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tallystick.core.canonical_json import encode
from tallystick.core.digests import NOUNS, digest, digest_bytes, digest_from, parse_digest
from tallystick.core.errors import MalformedError

VECTORS = Path(__file__).parents[2] / "vectors"
DOMAINS: list[dict[str, str]] = json.loads((VECTORS / "digest" / "domains.json").read_text())
FRAMING: list[dict[str, Any]] = json.loads((VECTORS / "merkle" / "framing_pairs.json").read_text())["pairs"]
SHA256 = re.findall(
    r"Len = (\d+)\s+Msg = ([0-9a-f]*)\s+MD = ([0-9a-f]{64})",
    (VECTORS / "fips180-4" / "SHA256ShortMsg.rsp").read_text(),
)
ZERO = "sha256:" + "0" * 64


def test_all_published_messages_have_their_published_sha256() -> None:
    assert len(SHA256) == 65
    for bits, message, expected in SHA256:
        data = bytes.fromhex(message)[: int(bits) // 8]
        assert hashlib.sha256(data).hexdigest() == expected


@pytest.mark.parametrize("case", DOMAINS, ids=lambda case: f"{case['noun']}-{case['data']}")
def test_a_digest_is_sha256_over_the_domain_and_the_bytes(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["data"])
    plain = hashlib.sha256(b"tallystick/" + case["noun"].encode() + b"/v1\n" + data).hexdigest()
    assert digest(case["noun"], data) == case["digest"] == f"sha256:{plain}"


def test_the_same_bytes_under_two_nouns_have_two_digests() -> None:
    assert len({digest(noun, b"same") for noun in NOUNS}) == len(NOUNS)


def test_no_noun_can_reach_into_the_bytes_behind_it() -> None:
    assert all(re.fullmatch("[a-z]+", noun) for noun in NOUNS)
    prefixes = [f"tallystick/{noun}/v1\n" for noun in sorted(NOUNS)]
    assert not any(b.startswith(a) or a.startswith(b) for a, b in combinations(prefixes, 2))


@pytest.mark.parametrize("pair", FRAMING, ids=lambda pair: str(pair["a"])[:40])
def test_fields_cannot_be_moved_across_their_borders(pair: dict[str, Any]) -> None:
    assert digest("record", encode(pair["a"])) != digest("record", encode(pair["b"]))
    assert digest("record", encode(pair["a"])) == digest("record", encode(list(pair["a"])))


def test_a_noun_outside_the_table_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="not in the table"):
        digest("potato", b"")


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        b"",
        "",
        ZERO[:-1],
        ZERO + "0",
        ZERO.upper(),
        ZERO + "\n",
        "sha512" + ZERO[6:],
        "0" * 64,
        ZERO[:-1] + "A",
    ],
)
def test_a_digest_in_another_spelling_is_refused(text: object) -> None:
    with pytest.raises(MalformedError, match=r"^claim\.spec: not a digest"):
        parse_digest(text, "claim.spec")


def test_a_digest_in_its_one_spelling_is_read() -> None:
    assert parse_digest(ZERO, "claim.spec") == ZERO


@given(st.binary(min_size=32, max_size=32))
@settings(deadline=None, max_examples=50)
def test_text_and_bytes_of_a_digest_determine_each_other(raw: bytes) -> None:
    assert digest_bytes(parse_digest(digest_from(raw), "round trip")) == raw


def test_the_page_lists_every_noun() -> None:
    page = (Path(__file__).parents[2] / "spec" / "digest.md").read_text()
    (listed,) = re.findall(r"^Nouns: ([^.]*)\.", page, re.MULTILINE)
    assert re.findall(r"`(\w+)`", listed) == sorted(NOUNS)
