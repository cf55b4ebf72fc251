"""Where an imported trace goes, and on which devices its ranks ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.errors import UsageError
from tallystick.recorders.timelines.subject import placement_of, target_of


def test_either_a_run_or_a_folder_is_named(tmp_path: Path) -> None:
    for run, out in ((None, None), (tmp_path, tmp_path)):
        with pytest.raises(UsageError, match="name the run that was profiled, or a folder for the trace"):
            target_of(run, "profile", out)
    assert target_of(tmp_path, "profile", None) == tmp_path / "traces" / "profile"
    assert target_of(None, "profile", tmp_path) == tmp_path


def test_a_rank_is_written_with_its_device() -> None:
    with pytest.raises(UsageError, match="--rank 0: write it as 0=node1/gpu0"):
        placement_of("host", ["0"])
    assert placement_of("host", ["0=node1/gpu0"]) is not None
