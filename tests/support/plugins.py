"""Distributions of somebody else, installed into a folder as `pip` does it: a module, its metadata, entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

GROUP = "tallystick.tolerances"


def install_tolerances(folder: Path, text: str, names: Mapping[str, str], package: str = "outside_package") -> None:
    """Install `package`, a module of this text, that offers each name by one of its attributes."""
    sys.modules.pop(package, None)  # of a test before
    (folder / f"{package}.py").write_text(text)
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    offered = "".join(f"{name} = {package}:{attribute}\n" for name, attribute in names.items())
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\n{offered}")
