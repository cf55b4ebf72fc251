"""The verifier's policy, read from TOML or JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.audits.policy import Policy, read_policy
from tallystick.core.errors import MalformedError, UnavailableError, UsageError

CLAIM = "sha256:" + "ab" * 32


def test_what_a_policy_leaves_out_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("")
    assert read_policy(path) == Policy()


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml, json = tmp_path / "policy.toml", tmp_path / "policy.json"
    toml.write_text(f'mode = "tolerant"\nsamples = 3\ndevices = ["cpu"]\nclaim = "{CLAIM}"\n')
    json.write_text(f'{{"claim": "{CLAIM}", "devices": ["cpu"], "mode": "tolerant", "samples": 3}}')
    assert read_policy(toml) == read_policy(json)
    assert read_policy(toml).devices == ("cpu",)


def test_a_policy_names_a_tolerance_that_is_known_here(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('mode = "tolerant"\ntolerance = "dual"\n')
    assert read_policy(path).tolerance == "dual"
    path.write_text('mode = "tolerant"\ntolerance = "duall"\n')
    with pytest.raises(UsageError, match=r"no such tolerance duall: did you mean dual\?"):
        read_policy(path)
    path.write_text('tolerance = "dual"\n')
    with pytest.raises(UsageError, match="an exact audit compares bytes"):
        read_policy(path)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("samples = 0", "samples"),
        ("samples = -3", "samples"),
        ("samples = 1.5", "samples"),
        ('samples = "many"', "samples"),
        ("samples = 99999999999999999999", "samples"),
        ("window = true", "window"),
        ("update_floor = nan", "update_floor"),
        ("update_floor = inf", "update_floor"),
        ("update_floor = 1.5", "update_floor"),
        ('mode = "lenient"', "mode"),
        ('devices = ["tpu"]', "devices"),
        ('claim = "sha256:12"', "claim"),
        ('claim = "md5:12"', "claim"),
        ("colour = 3", "colour"),
        ("samples = 2020-01-01", "samples"),
        ("samples = ", "TOML"),
        ("[samples]\n", "samples"),
        ("calibration = 3", "calibration"),
    ],
)
def test_a_field_out_of_range_or_unknown_is_refused_by_name(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(MalformedError, match=rf"policy\.toml: .*{field}"):
        read_policy(path)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"[" * 5000, b"\x00"])
def test_bytes_that_are_no_toml_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(data)
    with pytest.raises(MalformedError, match=r"policy\.toml"):
        read_policy(path)


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b'{"samples": 1, "samples": 2}', b"[" * 5000, b'{"samples": NaN}'])
def test_bytes_that_are_no_json_policy_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(data)
    with pytest.raises(MalformedError, match=r"policy\.json"):
        read_policy(path)


def test_a_missing_policy_and_a_directory_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UnavailableError, match=r"not there|not a regular file|a folder, not a file"):
            read_policy(path)
