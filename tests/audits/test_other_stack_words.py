"""What an exact audit says on another stack: the entries that matter, how many more there are, and the next step."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.audits.replay import describe_other_stack
from tallystick.formats.spec import Environment

HERE = Environment.from_json(
    {
        "version": 1,
        "python": "3.11.2",
        "system": "Linux",
        "machine": "x86_64",
        "cpu": "A processor",
        "capability": "AVX2",
        "torch": "2.9.0+cpu",
        "threads": 1,
        "device": "cpu",
        "cuda": "none",
        "cudnn": "none",
        "gpus": [],
        "math_libraries": ["OpenMP"],
        "variables": {"MKL_CBWR": ""},
        "packages": {"transformers": "5.17.0"},
    },
    "environment.json",
)


def told(**theirs: Any) -> str:
    return describe_other_stack(HERE, HERE.model_copy(update=theirs), "TOLERANT")


def needed(**theirs: Any) -> str:
    return told(**theirs).partition(" needs ")[2]


def test_two_or_three_entries_are_named_and_the_others_counted() -> None:
    line = told(torch="2.8.0", cpu="Other", capability="AVX512", cuda="12.8", math_libraries=("a",))
    assert line.startswith(
        "different stack (claimed → here): torch 2.8.0 → 2.9.0+cpu, capability AVX512 → AVX2, "
        "cpu Other → A processor and 2 more (-v lists all); TOLERANT, and bit for bit needs "
    )
    assert "more" not in told(torch="2.8.0", threads=4)


def test_long_entries_are_cut() -> None:
    assert len(told(cpu="x" * 4000)) < 300


@pytest.mark.parametrize(
    ("theirs", "command"),
    [
        ({"torch": "2.8.0", "cuda": "12.8"}, "`pip install 'torch==2.8.0'`"),
        (
            {"torch": "2.8.0+cu128", "packages": {"transformers": "5.1.0"}},
            "`pip install 'torch==2.8.0+cu128' 'transformers==5.1.0' "
            "--extra-index-url https://download.pytorch.org/whl/cu128`",
        ),
        ({"packages": {"transformers": "5.1.0"}}, "`pip install 'transformers==5.1.0'`"),
    ],
)
def test_another_library_gives_the_line_that_installs_it(theirs: dict[str, Any], command: str) -> None:
    assert needed(**theirs) == command


@pytest.mark.parametrize("version", ["2.8.0' ; rm -rf ~ '", "2.9.0a0+git1234", "unknown", "2.8.0\n"])
def test_a_version_that_no_index_has_is_not_put_into_a_command(version: str) -> None:
    assert "pip" not in told(torch=version)
    assert needed(torch=version) == f"torch {version}"


@pytest.mark.parametrize(
    ("theirs", "setting"),
    [
        ({"threads": 4}, "`OMP_NUM_THREADS=4 tally audit …`"),
        (
            {"capability": "DEFAULT", "variables": {"ATEN_CPU_CAPABILITY": "default"}},
            "`ATEN_CPU_CAPABILITY=default tally audit …`",
        ),
        ({"variables": {"MKL_CBWR": "AVX2"}, "threads": 2}, "`MKL_CBWR=AVX2 OMP_NUM_THREADS=2 tally audit …`"),
    ],
)
def test_other_kernels_of_the_same_libraries_give_the_setting(theirs: dict[str, Any], setting: str) -> None:
    assert needed(**theirs) == setting


def test_a_setting_that_only_this_process_has_is_to_be_left_out() -> None:
    here = HERE.model_copy(update={"variables": {"ATEN_CPU_CAPABILITY": "avx2"}})
    assert describe_other_stack(here, HERE, "TOLERANT").endswith("needs ATEN_CPU_CAPABILITY not set")


def test_a_value_that_is_no_setting_is_not_put_into_a_command() -> None:
    assert "rm" not in needed(variables={"MKL_CBWR": "$(rm -rf ~)"})


def test_other_hardware_is_asked_for_by_name_and_a_missing_device_is_called_missing() -> None:
    assert needed(cpu="Other", machine="aarch64") == "hardware with that cpu and machine"
    assert needed(device="cuda", gpus=("H200",)) == "a machine with cuda (no such device here)"
    with_gpu = HERE.model_copy(update={"device": "cuda", "gpus": ("H200",)})
    assert describe_other_stack(with_gpu, HERE, "TOLERANT").endswith("needs --device cpu")


def test_what_nobody_can_set_is_asked_for_as_it_was_claimed() -> None:
    assert needed(variables={"mkldnn": "false"}) == "the stack that was claimed"
    assert needed(math_libraries="unknown") == "a build of torch with that math libraries"
