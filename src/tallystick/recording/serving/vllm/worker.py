"""Methods of vLLM's workers for receipts, and the model runner, rows and engine behind them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import nn

from tallystick.core.errors import MalformedError, UnavailableError
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.generation.layer_tap import logit_rows
from tallystick.formats.fingerprints import PUBLIC_SEED
from tallystick.formats.receipt import EngineStatement
from tallystick.recording.serving.vllm.hidden_rows import HELD_BYTES_MAX, HiddenRows
from tallystick.recording.serving.vllm.logits_processor import CanonicalLogitsProcessor, LogitsRow
from tallystick.recording.serving.vllm.receipts import pack_rows
from tallystick.recording.serving.vllm.start import vllm_version

# What the plugin reads from vLLM's two model runners, under one interface.


@dataclass(frozen=True)
class Runner:
    """A worker's `model_runner` after its start: V2 has slots for requests (`req_states`), V1 has rows of a batch."""

    runner: Any

    @property
    def name(self) -> Literal["V1", "V2"]:
        """Which of the two it is."""
        return "V2" if hasattr(self.runner, "req_states") else "V1"

    @property
    def model(self) -> Any:
        """The model itself, without a wrapper for graphs of kernels."""
        return self.runner.get_model()

    @property
    def processor(self) -> CanonicalLogitsProcessor:
        """The canonical logits processor; raises `UnavailableError` if vLLM was started without it."""
        is_v2 = self.name == "V2"
        for each in self.runner.sampler.logits_processors if is_v2 else self.runner.input_batch.logitsprocs.all:
            if isinstance(each, CanonicalLogitsProcessor):
                return each
        raise UnavailableError(
            "start vLLM with --logits-processors "
            "tallystick.recording.serving.vllm.logits_processor:CanonicalLogitsProcessor"
        )

    @property
    def attention(self) -> str:
        """The names of the attention backends, in the order of their groups."""
        names = [group.backend.get_name() for groups in self.runner.attn_groups for group in groups]
        return ", ".join(dict.fromkeys(names)) or "none"

    def request_in(self, slot: int) -> str:
        """The id of the request in a row of the V1 runner's batch, or in a slot of the V2 runner."""
        if self.name == "V2":
            return str(self.runner.req_states.index_to_req_id[slot])
        return str(self.runner.input_batch.req_ids[slot])

    def drop_generators(self, rows: Sequence[int]) -> None:
        """Free the V1 runner's generators of `rows`, in which one token is left to be drawn.

        They cost time, and on a CPU vLLM fails to turn them back after a part of a prompt. Tensor-parallel workers all
        do the same, so that they still draw the same tokens for other requests.
        """
        for row in rows if self.name == "V1" else ():
            self.runner.input_batch.generators.pop(row, None)

    def last_positions(self) -> torch.Tensor:
        """The last position of each request in the pass that runs: I64[rows], with more rows behind those in use."""
        is_v2 = self.name == "V2"
        starts = self.runner.input_buffers.query_start_loc if is_v2 else self.runner.query_start_loc.gpu
        ends: torch.Tensor = starts[1:].long() - 1
        return ends.clamp(min=0)


def blocks_of(model: Any) -> nn.ModuleList:
    """The blocks of a model of vLLM; raises `UnavailableError` unless it has `model.layers` and `model.norm`."""
    backbone = getattr(model, "model", None)
    blocks = getattr(backbone, "layers", None)
    if not isinstance(blocks, nn.ModuleList) or not hasattr(backbone, "norm"):
        raise UnavailableError(f"{type(model).__name__}: not built of model.layers and model.norm")
    return blocks


def visible_layers(model: Any, config: Any) -> tuple[int, ...]:
    """The layers whose rows can be kept under `config`, a `VllmConfig`: final norm and logits, and in eager mode all.

    Hooks on blocks are not called inside a compiled or captured graph. Final norm and logits are argument and result of
    `compute_logits`, which vLLM calls outside of it.
    """
    final = len(blocks_of(model))
    compilation = config.compilation_config
    is_eager = all(getattr(each, "name", "NONE") == "NONE" for each in (compilation.mode, compilation.cudagraph_mode))
    return (*(range(final) if is_eager else ()), final, final + 1)


# The engine that a receipt from vLLM states, read from the worker that runs.

ENGINE = "vllm"


def describe_engine(runner: Runner, config: Any) -> EngineStatement:
    """Version, device, attention backends, kind of cache and environment of the process of a worker."""
    device: Literal["cpu", "cuda"] = "cuda" if torch.device(runner.runner.device).type == "cuda" else "cpu"
    is_compiled = getattr(config.compilation_config.mode, "name", "NONE") != "NONE"
    cache, own = str(config.cache_config.cache_dtype), str(config.model_config.dtype).removeprefix("torch.")
    way = f"{runner.name} runner, {'compiled' if is_compiled else 'eager'}"
    return EngineStatement(
        name=ENGINE,
        version=f"{vllm_version()}, torch {torch.__version__}, {way}",
        device=device,
        attention=runner.attention,
        kv_cache="native" if cache in ("auto", own) else cache,  # as computed, or vLLM's name of the type
        environment=describe_environment(device).stack_digest,
    )


# Watches a model of vLLM while it runs, for the rows from which the tokens of each pass are chosen.
#
# vLLM computes the positions of all requests in one tensor [positions, width], and logits from the last position of
# each request. Blocks return their output in two parts that must be added. The layer behind the final norm is the
# logits, at the entries of the vocabulary that the seed of the fingerprints draws.


class _ModelWatch:
    """Puts the rows of every pass into `rows`, for the requests that ask for canonical sampling.

    `rows` is None in workers that compute the same rows as the first, and keep none.

    A pass computes blocks, final norm and logits; then the logits processor says whose rows they are. Logits that are
    computed for other reasons (probabilities of a prompt's tokens) come later, and are forgotten with the next pass.
    """

    def __init__(self, runner: Runner, layers: Collection[int], seed: str, rows: HiddenRows | None) -> None:
        self.layers, self.rows, self._seed = tuple(sorted(set(layers))), rows, seed
        self._runner, self._seen, model = runner, dict[int, torch.Tensor](), runner.model
        blocks = blocks_of(model)
        self._final = len(blocks)
        inner = [layer for layer in self.layers if layer < self._final]
        self._handles = [blocks[layer].register_forward_hook(self._hook(layer)) for layer in inner]
        self._model, self._compute_logits = model, model.compute_logits
        model.compute_logits = self._watched
        runner.processor.on_pass = self._end_of_pass

    def close(self) -> None:
        """Leave the model as it was."""
        for handle in self._handles:
            handle.remove()
        self._model.compute_logits = self._compute_logits
        self._runner.processor.on_pass = None

    def _hook(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            parts = (output,) if isinstance(output, torch.Tensor) else output[:2]
            places = self._runner.last_positions().clamp(max=len(parts[0]) - 1)
            self._seen[layer] = torch.stack([part[places] for part in parts]).sum(0)

        return keep

    def _watched(self, hidden_states: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        self._seen[self._final] = hidden_states
        logits = self._compute_logits(hidden_states, *arguments, **named)
        if self._final + 1 in self.layers:
            self._seen[self._final + 1] = logit_rows(logits, self._seed)  # a copy: vLLM goes on to change the logits
        return logits

    def _end_of_pass(self, asking: Sequence[LogitsRow]) -> None:
        self._runner.drop_generators([row.row for row in asking])
        if self.rows is not None:
            requests = [self._runner.request_in(row.slot) for row in asking]
            batch, chosen = len(self._seen[self._final]), [row.row for row in asking]
            rows = {layer: self._seen[layer][:batch] for layer in self.layers}
            if len(chosen) != batch:
                rows = {layer: states[chosen] for layer, states in rows.items()}
            self.rows.add(requests, [row.position for row in asking], rows, batch)
        self._seen.clear()


# Methods of vLLM's workers for receipts (`--worker-extension-cls`), called with `collective_rpc`.
#
# They return plain data, so that nothing is pickled between vLLM's processes. With tensor parallelism every worker
# computes the same rows, and the first one keeps them.

SUFFIX: Final = re.compile(r"-[0-9a-f]{8}")
"""What vLLM adds to the id of a request inside the engine."""


class TallyWorkerExtension:
    """What a worker can do for receipts; vLLM provides `model_runner`, `vllm_config` and `rank`."""

    model_runner: Any
    vllm_config: Any
    rank: int

    def tally_describe(self) -> dict[str, Any]:
        """What runs, and what a receipt can contain.

        `engine` has the fields of an `EngineStatement`, `layers` the layers whose rows can be kept, `blocks` the number
        of blocks, `model` the directory and `context` the most tokens of a request.
        """
        runner, config = Runner(self.model_runner), self.vllm_config
        layers = visible_layers(runner.model, config)
        return {
            "engine": describe_engine(runner, config).to_json(),
            "runner": runner.name,
            "layers": list(layers),
            "blocks": max(layers) - 1,
            "model": str(config.model_config.model),
            "context": int(config.model_config.max_model_len),
        }

    def tally_watch(self, layers: Collection[int], seed: str = PUBLIC_SEED, bytes_max: int = HELD_BYTES_MAX) -> None:
        """Keep rows of `layers` from now on, in at most `bytes_max` bytes, for requests of canonical sampling.

        The layer behind the final norm is the logits, at the entries that `seed` draws, the seed of the fingerprints.

        Raises `MalformedError` for a layer that cannot be seen, `UnavailableError` without the logits processor.
        """
        runner = Runner(self.model_runner)
        visible = visible_layers(runner.model, self.vllm_config)
        if hidden := sorted(set(layers) - set(visible)):
            raise MalformedError(f"layers: {hidden} cannot be seen, of {list(visible)}: --enforce-eager shows all")
        if watch := getattr(self, "_tally_watch", None):
            watch.close()
        self._tally_rows = HiddenRows(bytes_max)
        kept, rows = (layers, self._tally_rows) if self.rank == 0 else ((), None)
        self._tally_watch = _ModelWatch(runner, kept, seed, rows)

    def tally_take(self, request_id: str, tokens: int) -> dict[str, Any]:
        """What is kept of a finished request, and then dropped: `rows` of its first `tokens` tokens by `pack_rows`.

        `largest` is the largest number of requests in a pass that computed one of them.
        The id is the one under which the request was submitted; of `n` choices the i-th is named `i_` and this id.
        Raises `UnavailableError` if rows are missing.
        """
        if self.rank != 0:
            return {}
        names = self._tally_named(request_id)
        if len(names) != 1:
            raise UnavailableError(f"request {request_id}: {len(names)} requests of that name have rows")
        largest = self._tally_rows.largest(names[0])
        return {"largest": largest, "rows": pack_rows(self._tally_rows.take(names[0], tokens))}

    def tally_drop(self, request_id: str) -> None:
        """Free the rows of a request that was cancelled or needs no receipt; does nothing if there are none."""
        for name in self._tally_named(request_id) if self.rank == 0 else ():
            self._tally_rows.drop(name)

    def _tally_named(self, request_id: str) -> list[str]:
        """The ids inside the engine of a request."""
        held = self._tally_rows.requests
        if request_id in held:
            return [request_id]
        return [name for name in held if name.startswith(request_id) and SUFFIX.fullmatch(name, len(request_id))]
