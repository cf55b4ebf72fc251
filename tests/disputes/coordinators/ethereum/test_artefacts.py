"""The committed artefacts come from the sources beside them, and the tests in Solidity pass."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
CONTRACTS = ROOT / "contracts"
PLACES = {
    "Coordinator": (ROOT / "src/tallystick/disputes/coordinators/ethereum", ("src",)),
    "Harness": (Path(__file__).parent, ("src", "harness")),
    "Driver": (Path(__file__).parent, ("src", "harness")),
}
TIMEOUT_S = 240


def artefact(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_bytes())


def sources_digest(root: Path, folders: tuple[str, ...]) -> str:
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).iterdir()):
            found.update(f"{folder}/{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()


@pytest.fixture
def tools() -> Path:
    """The folder of the npm packages; skips where they are not installed."""
    folder = CONTRACTS / "node_modules"
    if shutil.which("node") is None or not (folder / "solc").is_dir():
        pytest.skip("solc is not installed: run `npm ci` in contracts/")
    return folder


@pytest.mark.parametrize("name", PLACES)
def test_an_artefact_is_made_from_the_present_sources(name: str) -> None:
    """`node contracts/compile.js` makes them anew."""
    folder, sources = PLACES[name]
    found = artefact(folder, name)
    assert found["sources"] == sources_digest(CONTRACTS, sources)
    assert found["settings"] == json.loads((CONTRACTS / "settings.json").read_bytes())


def test_a_changed_source_is_noticed(tmp_path: Path) -> None:
    copy = tmp_path / "src"
    shutil.copytree(CONTRACTS / "src", copy)
    same = sources_digest(tmp_path, ("src",))
    (copy / "Ledger.sol").write_text((copy / "Ledger.sol").read_text().replace("<=", "<", 1))
    assert same == sources_digest(CONTRACTS, ("src",)) != sources_digest(tmp_path, ("src",))


def test_compiling_again_gives_the_same_bytes(tools: Path, tmp_path: Path) -> None:
    command = ["node", str(CONTRACTS / "compile.js"), str(tmp_path), "Coordinator"]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    committed = PLACES["Coordinator"][0] / "Coordinator.json"
    assert (tmp_path / "Coordinator.json").read_bytes() == committed.read_bytes()


def test_the_tests_in_solidity_pass(tools: Path) -> None:
    forge = tools / ".bin" / "forge"
    if not forge.is_file():
        pytest.skip("forge is not installed for this machine")
    done = subprocess.run([str(forge), "test", "--json"], cwd=CONTRACTS, capture_output=True, timeout=TIMEOUT_S)
    suites = json.loads(done.stdout)
    results = {test: found["status"] for suite in suites.values() for test, found in suite["test_results"].items()}
    assert [test for test, status in results.items() if status != "Success"] == []
    assert len(results) >= 34
    assert done.returncode == 0
