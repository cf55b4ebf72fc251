"""The settings under which a run is replayed: those that it states, as far as they are safe to take over."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tallystick.audits.differences.runs import ReplaySettings, run_each
from tallystick.core.errors import UnavailableError
from tallystick.formats.spec import Environment


def environment(**changes: Any) -> Environment:
    found = {
        "python": "3", "system": "Linux", "machine": "x86_64", "cpu": "c", "capability": "AVX512", "torch": "2",
        "threads": 3, "device": "cpu", "cuda": "none", "cudnn": "none", "gpus": (), "math_libraries": (),
        "variables": {}, "packages": {},
    }  # fmt: skip
    return Environment(**(found | changes))


def test_switches_and_threads_are_those_that_the_run_states() -> None:
    found = ReplaySettings.of(environment(variables={"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "AVX2"}))
    here = found.variables_here()
    assert (here["ATEN_CPU_CAPABILITY"], here["MKL_CBWR"], here["OMP_NUM_THREADS"]) == ("default", "AVX2", "3")
    assert found == ReplaySettings.of(environment(capability="DEFAULT", variables={"MKL_CBWR": "AVX2"}))


def test_a_processor_without_vector_code_is_imitated_on_its_own_kind_alone() -> None:
    portable = ReplaySettings.of(environment(capability="DEFAULT"))
    assert portable.variables["ATEN_CPU_CAPABILITY"] == "default"
    assert not ReplaySettings.of(environment(capability="DEFAULT", machine="aarch64")).variables["ATEN_CPU_CAPABILITY"]


@pytest.mark.parametrize("value", ["avx512", "default; rm", "x" * 40])
def test_what_this_processor_may_lack_or_is_no_setting_is_left_out(value: str) -> None:
    found = ReplaySettings.of(environment(variables={"ATEN_CPU_CAPABILITY": value, "LD_PRELOAD": "evil.so"}))
    assert "ATEN_CPU_CAPABILITY" not in found.variables_here()
    assert found.variables_here().get("LD_PRELOAD") == os.environ.get("LD_PRELOAD")


def test_a_process_that_fails_is_told_by_its_last_line() -> None:
    with pytest.raises(UnavailableError, match="No module named"):
        run_each("tallystick.no_such_module", [(ReplaySettings(), ["x"])])
    run_each("this", [(ReplaySettings(), [])])
