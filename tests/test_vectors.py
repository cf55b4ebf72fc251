from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
VECTORS = ROOT / "vectors"
THIRD_PARTY = ["jcs", "json-test-suite", "rfc6962-merkle", "speccheck", "tessera-log", "wycheproof"]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vectors_script", ROOT / "scripts" / "vectors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_making_our_vectors_again_gives_the_same_bytes() -> None:
    made: dict[str, bytes] = load_script().own_vectors()
    assert len(made) == 10
    assert {path: (VECTORS / path).read_bytes() for path in made} == made


@pytest.mark.parametrize("folder", THIRD_PARTY)
def test_what_others_published_keeps_its_licence(folder: str) -> None:
    assert (VECTORS / folder / "LICENSE").stat().st_size > 500


def test_the_files_named_in_a_manifest_are_unchanged() -> None:
    manifest = json.loads((VECTORS / "safetensors" / "manifest.json").read_text())
    for name, case in manifest.items():
        data = (VECTORS / "safetensors" / f"{name}.safetensors").read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (case["sha256"], case["size"])


def test_every_folder_is_described() -> None:
    described = (VECTORS / "README.md").read_text()
    folders = sorted(path.name for path in VECTORS.iterdir() if path.is_dir() and any(path.iterdir()))
    assert [folder for folder in folders if f"`{folder}/" not in described] == []


def test_every_page_of_the_specification_is_in_its_index() -> None:
    index = (ROOT / "spec" / "README.md").read_text()
    pages = sorted(path.name for path in (ROOT / "spec").glob("*.md") if path.name != "README.md")
    assert [page for page in pages if f"]({page})" not in index] == []
