"""Methods of vLLM's workers for receipts (`--worker-extension-cls`), called with `collective_rpc`.

They return plain data, so that nothing is pickled between vLLM's processes. With tensor parallelism every worker
computes the same rows, and the first one keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

from tallystick.errors import MalformedError, UnavailableError
from tallystick.serving.vllm.engine import describe_engine
from tallystick.serving.vllm.hidden_rows import HELD_BYTES_MAX, HiddenRows
from tallystick.serving.vllm.model_watch import ModelWatch
from tallystick.serving.vllm.runners import Runner, visible_layers
from tallystick.serving.vllm.wire import pack_rows
from tallystick.tolerances.fingerprints.settings import PUBLIC_SEED

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
        self._tally_watch = (
            ModelWatch(runner, layers, seed, self._tally_rows) if self.rank == 0 else ModelWatch(runner, (), seed, None)
        )

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
