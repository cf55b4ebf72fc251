"""The verifier's policy, and the request that a customer remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tallystick.audits.answers.policy import STANDARD_DEMANDS, FingerprintDemand, ReceiptPolicy, read_receipt_policy
from tallystick.audits.answers.request import ExpectedRequest, read_request
from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.formats.receipt import Sampler

KEY = "ab" * 32
TOML = f"""
keys = ["{KEY}"]
unknown_key = "rejected"
nonce = "required"
seed = "customer"
audit_sample = 0.25
tokens_max = 4096

[[demands]]
layers = [2]
width_min = 8

[sampler]
alpha = 1e-5
"""


def test_a_policy_is_read_from_toml_and_from_json(tmp_path: Path) -> None:
    toml, json = tmp_path / "policy.toml", tmp_path / "policy.json"
    toml.write_text(TOML)
    policy = read_receipt_policy(toml)
    json.write_bytes(policy.to_bytes())
    assert read_receipt_policy(json) == policy
    assert policy.keys == (KEY,)
    assert policy.demands == (FingerprintDemand(layers=(2,), width_min=8),)
    assert policy.sampler.alpha == 1e-5


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('keys = ["short"]', "keys.0"),
        (
            f'keys = ["{KEY}", "01{62 * "0"}"]',
            "keys.1: the key 0100000000000000… is a point of small order",
        ),
        (f'keys = ["{62 * "f"}7f"]', "keys.0: the key ffffffffffffffff… is not in canonical form"),
        ("audit_sample = 2.0", "audit_sample"),
        ("tokens_max = 0", "tokens_max"),
        ("memory_max = -1", "memory_max"),
        ('seed = "mine"', "seed"),
        ("[sampler]\nalpha = 0.0", "sampler.alpha"),
        ("[[demands]]\nlayers = [-1]", "demands.0.layers"),
        ("unknown = 1", "unknown"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_its_field(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(MalformedError, match=field.replace(".", r"\.")):
        read_receipt_policy(path)


def test_a_policy_that_is_no_toml_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(b"\xff\xfe = [")
    with pytest.raises(MalformedError, match="no valid TOML"):
        read_receipt_policy(path)
    with pytest.raises(UnavailableError):
        read_receipt_policy(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("demand", "is_met"),
    [
        (FingerprintDemand(), True),
        (FingerprintDemand(layers=(2,)), True),
        (FingerprintDemand(layers=(0, 2), width_min=15), True),
        (FingerprintDemand(layers=(1,)), False),
        (FingerprintDemand(width_min=16), False),
        (FingerprintDemand(bytes_min=1.0), True),
        (FingerprintDemand(bytes_min=100.0), False),
        (FingerprintDemand(method="toploc"), False),
        (FingerprintDemand(final=True, block_max=8), True),
        (FingerprintDemand(layers=(0,), final=True), True),
        (FingerprintDemand(block_max=7), False),
        *((each, True) for each in STANDARD_DEMANDS),
    ],
)
def test_a_demand_is_met_by_enough_of_the_right_kind(
    honest_answer: Any, demand: FingerprintDemand, is_met: bool
) -> None:
    assert demand.is_met(honest_answer.issued.signed.receipt, 2) is is_met


def test_a_request_is_read_as_it_was_sent() -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        "max_completion_tokens": 7,
        "temperature": 0.5,
        "top_k": -1,
        "stop": "x",
        "stream": True,
        "presence_penalty": 0,
        "top_p": None,
        "extra_body": {"tally_nonce": "ab", "min_p": 0.1},
    }
    asked = ExpectedRequest.from_body(body)
    assert asked.messages == ({"role": "user", "content": "ab"},)
    assert asked.max_tokens == 7
    assert asked.stop == ("x",)
    assert asked.tally_nonce == "ab"
    assert asked.settings_of() == {"temperature": 0.5, "top_k": 0, "min_p": 0.1}
    assert asked.others == ()


def test_seeds_of_several_answers_count_upward() -> None:
    assert ExpectedRequest(seed=5).settings_of(2) == {"seed": 7}
    assert ExpectedRequest().settings_of(2) == {}


def test_fields_that_no_check_covers_are_named() -> None:
    body = {"prompt": "a", "functions": [{"name": "f"}], "suffix": "x", "tools": [], "best_of": 1}
    assert ExpectedRequest.from_body(body).others == ("functions", "suffix")


def test_adjustments_are_read_as_a_sampler_states_them_and_are_off_where_the_body_has_none() -> None:
    body = {"prompt": "a", "logit_bias": {"12": -1, "5": 2, "7": 0}, "bad_token_ids": [9, 3, 9], "min_tokens": 2}
    asked = ExpectedRequest.from_body(body)
    found = asked.adjustments({8, 4})
    assert found["logit_bias"] == ((5, 2), (12, -1))
    assert (found["bad_token_ids"], found["min_tokens"], found["end_token_ids"]) == ((3, 9), 2, (4, 8))
    stated: Any = found
    assert Sampler(**stated).adjustments == ("logit_bias", "bad_token_ids", "min_tokens", "end_token_ids")
    nothing: Any = ExpectedRequest.from_body({"prompt": "a"}).adjustments({8})
    assert not Sampler(**nothing).adjustments


@pytest.mark.parametrize("bias", [{"x": 1}, {"-1": 1}, {"5": 101}, {"5": "much"}, {"1048576": 1}, {"5": 1, "05": 2}])
def test_a_bias_that_no_sampler_can_state_is_refused(bias: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="logit_bias"):
        ExpectedRequest.from_body({"prompt": "a", "logit_bias": bias})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "object"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text"),
        ({"tally_nonce": "xyz"}, "tally_nonce"),
        ({"extra_body": 3}, "extra_body"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_its_field(body: Any, field: str) -> None:
    with pytest.raises(MalformedError, match=field):
        ExpectedRequest.from_body(body)


def test_a_prompt_is_rendered_by_the_verifier(language_model: Any, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    assert read_request(path).prompt_tokens(language_model) == tuple(
        language_model.encode_chat([{"role": "user", "content": "hi"}])
    )
    assert ExpectedRequest(prompt="hi").prompt_tokens(language_model) == tuple(language_model.encode_text("hi"))
    assert ExpectedRequest(prompt=(1, 2)).prompt_tokens(language_model) == (1, 2)
    assert ExpectedRequest().prompt_tokens(language_model) is None


def test_the_policy_that_asks_least_has_no_keys() -> None:
    assert ReceiptPolicy().keys == ()
