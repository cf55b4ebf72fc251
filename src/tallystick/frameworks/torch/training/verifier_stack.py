"""A verifier's stack with PyTorch on this machine. The replayer of step graphs is loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from tallystick.commitments.digests import Digest
from tallystick.datasets.tokenizer import Tokenizer
from tallystick.frameworks.torch.environment import describe_environment
from tallystick.frameworks.torch.models import PARAMETERS_MAX
from tallystick.frameworks.torch.training.replayer import TorchReplayer
from tallystick.transcripts.environment import Environment
from tallystick.transcripts.spec import Spec
from tallystick.workloads.replayer import Replayer
from tallystick.workloads.verifier_stack import VerifierStack

if TYPE_CHECKING:
    from tallystick.datasets.encoding import Encoder
    from tallystick.workloads.program import StepProgram

THREADS_MAX: Final = 256
_captured: dict[tuple[bytes, int], Digest] = {}


def torch_verifier_stack(
    stated: Environment, device: str | None = None, parameters_max: int = PARAMETERS_MAX
) -> VerifierStack:
    """PyTorch on `device`; by default the device of the `stated` environment if it is present.

    Sets the number of threads of this process to that of the run, at most 256: sums of floats are split by threads, so
    another number gives other last bits.
    """
    on = device or (stated.device if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(min(stated.threads, THREADS_MAX))

    def graph_replayer(spec: Spec, program: StepProgram) -> Replayer:
        from tallystick.frameworks.torch.training.graph_replayer import GraphReplayer

        return GraphReplayer(spec, program, on, parameters_max)

    return VerifierStack(
        describe_environment("cuda" if on.startswith("cuda") else "cpu"),
        lambda spec, dataset, plan: TorchReplayer(spec, dataset, plan, on, parameters_max),
        graph_replayer,
        recipe_graph_root,
        _train_bpe,
        _read_encoder,
    )


def recipe_graph_root(spec: Spec) -> Digest:
    """The root of the step graph that these libraries capture from the recipe of `spec`.

    It is captured once per process, because the libraries do not change. Raises `UnavailableError` if the step cannot
    be captured.
    """
    from tallystick.frameworks.torch.training.recipe_step import capture_recipe_step
    from tallystick.graphs.root import graph_root
    from tallystick.workloads.plan import classes

    assert spec.recipe is not None  # only a recipe is captured anew
    name = spec.recipe.to_bytes(), classes(spec)
    if name not in _captured:
        _captured[name] = graph_root(capture_recipe_step(spec.recipe, classes(spec)).graph)
    return _captured[name]


def _read_encoder(content: bytes, end: str) -> Encoder:
    from tallystick.frameworks.tokenizer_files import (
        TokenizerFile,  # raises where the library is missing: only an audit with a corpus asks
    )

    return TokenizerFile(content, end)


def _train_bpe(text: str, vocabulary: int) -> Tokenizer:
    from tallystick.frameworks.tokenizers import (
        train_bpe,  # raises where the library is missing: only a full audit asks
    )

    return train_bpe(text, vocabulary)
