"""What a process says about itself: enough to repeat its bits, and nothing about who or where it is."""

from __future__ import annotations

import getpass
import os
import platform
import socket
from pathlib import Path

import pytest
import torch

from tallystick.engines.torch.environment import SWITCHES, describe_environment
from tallystick.formats.spec import Environment


@pytest.fixture(scope="module")
def environment(one_thread: None) -> Environment:
    return describe_environment("cpu")


def test_an_environment_is_a_document_that_reads_back(environment: Environment) -> None:
    assert Environment.from_bytes(environment.to_bytes(), "environment.json") == environment
    assert environment.differences(describe_environment("cpu")) == ()


def test_it_says_what_decides_the_bits(environment: Environment) -> None:
    assert environment.torch == torch.__version__
    assert environment.threads == torch.get_num_threads()
    assert environment.python == platform.python_version()
    assert isinstance(environment.packages, dict)
    assert {"numpy", "torch", "transformers"} <= environment.packages.keys()
    assert set(SWITCHES) < environment.variables.keys()


def test_what_is_installed_is_read_once(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.distributions", lambda: pytest.fail("read again"))
    again = describe_environment("cpu")
    assert again.packages == environment.packages
    assert again.packages is not environment.packages


def test_it_names_no_host_no_path_and_no_time(environment: Environment) -> None:
    text = environment.to_bytes().decode()
    for private in (socket.gethostname(), platform.node(), str(Path.home()), str(Path.cwd())):
        assert len(private) < 6 or private not in text
    assert not {"hostname", "user", "path", "time", "date"} & set(Environment.model_fields)


def test_it_names_no_person(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USER", "LOGNAME", "USERNAME", "HOSTNAME", "HOME", "PWD", "EMAIL"):
        monkeypatch.setenv(name, "jacqueline-the-prover")
    assert getpass.getuser() == "jacqueline-the-prover"
    assert b"jacqueline" not in describe_environment("cpu").to_bytes()


def test_variables_that_are_no_switch_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "open-sesame")
    assert b"open-sesame" not in describe_environment("cpu").to_bytes()


def test_a_switch_is_told_and_makes_a_difference(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MKL_CBWR" not in os.environ
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert describe_environment("cpu").differences(environment) == ("MKL_CBWR: COMPATIBLE / not set",)


def test_another_number_of_threads_makes_a_difference(environment: Environment) -> None:
    held = torch.get_num_threads()
    torch.set_num_threads(held + 1)
    try:
        assert describe_environment("cpu").differences(environment) == (f"threads: {held + 1} / {held}",)
    finally:
        torch.set_num_threads(held)
