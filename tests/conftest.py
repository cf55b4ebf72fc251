"""One tiny honest run, trained once, and short ways to train, audit and tamper with copies of it."""

from __future__ import annotations

import copy
import gc
import shutil
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support import real_model

TEXT = "\n".join(
    f"Notch {number}: the stick is split, {number * number} and the halves must match." for number in range(90)
)

TINY: dict[str, Any] = {
    "data": {"kind": "text", "validation": 8},
    "model": {
        "architecture": "llama",
        "attention": "eager",
        "config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32,
            "tie_word_embeddings": True,
            "attention_dropout": 0.1,
        },
    },
    "optimizer": {"kind": "adamw", "learning_rate": 3e-3, "weight_decay": 0.01, "clip_norm": 1.0},
    "schedule": {"kind": "cosine", "warmup_steps": 3},
    "training": {"steps": 12, "batch": 4, "sequence": 16, "seed": 11},
    "record": {
        "anchor_stride": 4,
        "summaries": ["exact", "bucket", "projection"],
        "exact_stride": 2,
        "bucket_stride": 3,
        "bucket_mode": "both",
        "hint_margin": 0.001,
        "activation_checksum": True,
    },
}

FAST = {"record": {"anchor_stride": 4, "summaries": ["exact", "projection"]}}
"""Overrides for a run that records no buckets: what most tests of training need."""


LONG = {
    *("test_journeys.py", "test_readme.py", "test_pages.py", "test_tutorial.py"),
    *("test_parties_programs.py", "test_ethereum_programs.py", "test_simulation.py", "test_mutants.py"),
    *("test_honest_loops.py", "test_huggingface.py", "test_crashes.py", "test_real.py", "test_every_engine.py"),
    *("test_catalogue.py", "test_artefacts.py", "test_streams.py", "test_training.py"),
}
"""The modules that take longest."""


def pytest_configure() -> None:
    """Hypothesis draws the same examples every time, and reads no clock; the environment of vLLM is without it."""
    if find_spec("hypothesis"):
        from hypothesis import settings

        settings.load_profile("ci")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What stays to the end is not searched for garbage again and again: all modules, and every test.

    What a test leaves behind is looked for less often than by default, where it is a tenth of all work of some tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long modules start first: a worker runs one module at a time, and at the end no core waits for the other one.

    Tests of the pretrained model are left out where its package is not installed.
    """
    items.sort(key=lambda item: item.path.name not in LONG)
    if missing := real_model.missing():
        for item in items:
            if item.get_closest_marker("real_model"):
                item.add_marker(pytest.mark.skip(reason=missing))


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it; lists and the section `record` are replaced, other tables merged."""
    result = copy.deepcopy(dict(base))
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(result.get(name), dict) and name not in {"record", "config"}:
            result[name] = merged(result[name], value)
        else:
            result[name] = copy.deepcopy(value)
    return result


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Any connection beyond this machine fails the test that opens it: nothing is ever fetched."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a test tried to reach the network: {arguments[-1]!r}")

    held = socket.socket.connect, socket.getaddrinfo
    socket.socket.connect, socket.getaddrinfo = refuse, refuse  # type: ignore[assignment,method-assign]
    yield
    socket.socket.connect, socket.getaddrinfo = held  # type: ignore[method-assign]


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What parties keep between two moves, apart from what other tests beside these keep, or left when killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Tiny models are fastest on one thread, and a forked child may not meet a pool of its parent's."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of a few kilobytes."""
    path = tmp_path_factory.mktemp("source") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="session")
def recipe_of() -> Callable[..., Any]:
    """The tiny recipe with some of its fields replaced: `recipe_of({"training": {"steps": 4}})`."""
    from tallystick.formats.recipe import Recipe

    def build(*changes: Mapping[str, Any]) -> Recipe:
        table: Mapping[str, Any] = TINY
        for change in changes:
            table = merged(table, change)
        return Recipe.from_json(dict(table), "recipe")

    return build


@pytest.fixture(scope="session")
def trained(one_thread: None, source: Path, recipe_of: Callable[..., Any]) -> Callable[..., Any]:
    """Train the tiny recipe with changes into a directory and return its claim."""
    from tallystick.recording.training import Config, train

    def run(out: Path, *changes: Mapping[str, Any]) -> Any:
        return train(Config(recipe_of(*changes), source), out)

    return run


@pytest.fixture(scope="session")
def honest(trained: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished honest run. Shared by all tests: read it, and never write into it."""
    out = tmp_path_factory.mktemp("honest") / "run"
    trained(out)
    return out


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy of the honest run to tamper with."""
    return Path(shutil.copytree(honest, tmp_path / "run"))


@pytest.fixture(scope="session")
def plain(trained: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run without buckets and blobs, for tests that train it again. Never write into it."""
    out = tmp_path_factory.mktemp("plain") / "run"
    trained(out, FAST)
    return out


@pytest.fixture(scope="session")
def model_directory(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model that the plain run trained, as a directory to serve. Never write into it."""
    from tallystick.formats.store.run import RunDirectory
    from tallystick.recording.models import export_model

    out = tmp_path_factory.mktemp("model") / "model"
    export_model(RunDirectory(plain), out)
    return out


@pytest.fixture(scope="session")
def language_model(model_directory: Path) -> Any:
    """That model, loaded on this stack."""
    from tallystick.engines.torch.generation.language_models import load_language_model

    return load_language_model(model_directory)


@pytest.fixture(scope="session")
def pretrained() -> Path:
    """SmolLM2-135M-Instruct in F32, for tests with the marker `real_model`. Never write into it."""
    return real_model.directory()


@pytest.fixture(scope="session")
def fast() -> Mapping[str, Any]:
    """The changes that make `plain` out of the tiny recipe."""
    return FAST


@pytest.fixture(scope="session")
def rewrite() -> Callable[..., None]:
    """Change the records of a run and recompute lines, tiles, offsets, root and claim: `rewrite(run, change)`."""
    import json

    from tallystick.core.canonical_json import encode
    from tallystick.formats.store.log import LogWriter, read_lines

    def apply(run: Path, change: Callable[[list[dict[str, Any]]], None], log: str = "transcript") -> None:
        path = run / f"{log}.jsonl"
        records = [json.loads(line) for line in read_lines(path)]
        change(records)
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
        shutil.rmtree(run / "tiles" / log)
        claim = json.loads((run / "claim.json").read_bytes()) | {log: LogWriter(path).close().to_json()}
        (run / "claim.json").write_bytes(encode(claim))

    return apply


@pytest.fixture(scope="session")
def graphs_read_once() -> Iterator[None]:
    """The same bytes are the same graph: audits of the same run, and forgeries that leave its graph alone, share it."""
    from tallystick.programs import files

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read_graph", lru_cache(maxsize=64)(files.read_graph))
        yield


@pytest.fixture(scope="session")
def audited(one_thread: None, graphs_read_once: None) -> Callable[..., Any]:
    """Audit a run directory on this machine; keyword arguments are the fields of the policy."""
    from tallystick.audits.policy import Policy
    from tallystick.audits.training import audit_training
    from tallystick.engines.tokenizers import train_bpe
    from tallystick.engines.torch.environment import describe_environment
    from tallystick.engines.torch.training.verifier_stack import TorchReplayer
    from tallystick.formats.store.run import RunDirectory
    from tallystick.verdicts.replayer import VerifierStack

    def audit(path: Path, *, nonce: bytes = bytes(32), device: str = "cpu", **policy: Any) -> Any:
        def replayer(spec: Any, dataset: Any, plan: Any) -> Any:
            return TorchReplayer(spec, dataset, plan, device)

        environment = describe_environment("cuda" if device == "cuda" else "cpu")
        asked = Policy.from_json(policy, "policy")
        return audit_training(
            RunDirectory(path), asked, nonce, VerifierStack(environment, replayer, train_bpe=train_bpe)
        )

    return audit


@pytest.fixture(scope="session")
def answered(audited: Callable[..., Any]) -> Callable[..., str]:
    """The outcome of an audit, or the one line with which it refused the run; any other error travels on."""
    from tallystick.core.errors import TallyError

    def answer(path: Path, **policy: Any) -> str:
        try:
            return str(audited(path, **policy).verdict.outcome)
        except TallyError as error:
            return f"{type(error).__name__}: {error}"

    return answer


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Kernels that add up in the order of threads, in this test alone."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def unknown_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which nobody knows what dropout draws."""
    for place in ("engines.torch.randomness", "engines.torch.capture.training_step", "recording.loop.loop_recorder"):
        monkeypatch.setattr(f"tallystick.{place}.native_mask", lambda: None)
