"""`--device cuda` where there is no such device: refused by every command that has the option, before any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.tally.cli.test_json import COMMANDS

Tally = Callable[..., Any]
WITH_DEVICE = [name for name, each in COMMANDS.items() if any("--device" in param.opts for param in each.params)]


def test_commands_that_compute_have_the_option() -> None:
    assert {"audit", "verify-segment", "open", "diff", "generate", "verify-response", "challenger"} <= {*WITH_DEVICE}


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_a_device_that_is_not_here_is_named_and_no_verdict(
    tally: Tally, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = tally(*name.split(), "--device", "cuda")
    assert told.code == 4
    assert told.complaint.startswith("tally: --device cuda: there is no such device here (")
    assert told.complaint.endswith("--device cpu computes without it")


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_a_device_that_is_here_is_taken_and_another_kind_is_none(
    tally: Tally, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "device" not in tally(*name.split(), "--device", "cuda").complaint
    assert "--device: must be cpu or cuda, not 'tpu'" in tally(*name.split(), "--device", "tpu").complaint
