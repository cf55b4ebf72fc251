"""Two environments and what makes their last bits differ."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.core.errors import MalformedError
from tallystick.formats.spec import Environment

FIELDS: dict[str, Any] = {
    "python": "3.11.2",
    "system": "Linux",
    "machine": "x86_64",
    "cpu": "Some processor",
    "capability": "AVX2",
    "torch": "2.9.0",
    "threads": 2,
    "device": "cpu",
    "cuda": "none",
    "cudnn": "none",
    "gpus": [],
    "math_libraries": ["OpenMP"],
    "variables": {"MKL_CBWR": ""},
    "packages": {"transformers": "5.17.0", "rich": "14"},
}


def environment(**changes: Any) -> Environment:
    return Environment.from_json(FIELDS | changes, "environment.json")


def test_an_environment_reads_back_and_agrees_with_itself() -> None:
    ours = environment()
    assert Environment.from_bytes(ours.to_bytes(), "environment.json") == ours
    assert ours.differences(ours) == ()


def test_a_stack_has_a_digest_in_which_other_packages_have_no_part() -> None:
    ours = environment()
    other = environment(packages={"transformers": "5.17.0", "rich": "15"}, python="3.12.0")
    assert ours.stack_digest == other.stack_digest
    assert ours.stack_digest != environment(packages={"transformers": "5.18.0"}).stack_digest
    assert ours.is_named_by(other.stack_digest)
    assert ours.is_named_by(ours.digest_as("environment"))
    assert not ours.is_named_by(other.digest_as("environment"))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"torch": "2.10.0"}, "torch: 2.9.0 / 2.10.0"),
        ({"threads": 4}, "threads: 2 / 4"),
        ({"cpu": "Another"}, "cpu: Some processor / Another"),
        ({"capability": "AVX512"}, "capability: AVX2 / AVX512"),
        ({"machine": "aarch64"}, "machine: x86_64 / aarch64"),
        ({"math_libraries": []}, "math libraries: OpenMP / "),
        ({"variables": {"MKL_CBWR": "AVX2"}}, "MKL_CBWR: not set / AVX2"),
        ({"packages": {"transformers": "5.18.0"}}, "transformers: 5.17.0 / 5.18.0"),
        ({"device": "cuda"}, "device: cpu / cuda"),
    ],
)
def test_what_decides_the_bits_is_a_difference_with_its_name(change: dict[str, Any], difference: str) -> None:
    assert difference in environment().differences(environment(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"python": "3.12.0"},
        {"system": "Darwin"},
        {"packages": {"transformers": "5.17.0", "rich": "15"}},
        {"gpus": ["a GPU that is not used"]},
        {"variables": {}},
    ],
)
def test_what_does_not_decide_the_bits_is_none(change: dict[str, Any]) -> None:
    assert environment().differences(environment(**change)) == ()


def test_the_gpus_count_where_they_are_used() -> None:
    ours, theirs = environment(device="cuda", gpus=["A"]), environment(device="cuda", gpus=["B"])
    assert ours.differences(theirs) == ("gpus: A / B",)


@pytest.mark.parametrize("field", ["math_libraries", "packages", "gpus"])
def test_unknown_is_not_empty(field: str) -> None:
    empty: Any = {} if field == "packages" else []
    assert environment(**{field: "unknown"}) != environment(**{field: empty})
    assert environment(**{field: "unknown"}).digest_as("environment") != environment(**{field: empty}).digest_as(
        "environment"
    )


def test_an_unknown_entry_differs_even_from_itself() -> None:
    ours = environment(math_libraries="unknown")
    assert ours.differences(ours) == ("math libraries: unknown / unknown",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("threads", 1.5),
        ("device", "tpu"),
        ("gpus", "none"),
        ("packages", ["transformers"]),
        ("version", 2),
        ("user", "somebody"),
    ],
)
def test_other_values_and_other_fields_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(MalformedError, match=field):
        environment(**{field: value})


def test_this_process_can_describe_its_own() -> None:
    pytest.importorskip("torch")
    import getpass
    import platform

    from tallystick.engines.torch.environment import describe_environment

    ours = describe_environment("cpu")
    assert Environment.from_bytes(ours.to_bytes(), "environment.json") == ours
    assert ours.differences(ours) == ()
    text = ours.to_bytes().decode()
    assert platform.node() not in text or len(platform.node()) < 4
    assert f"/{getpass.getuser()}/" not in text
