"""The masks of requests whose answers follow a schema, as their rows come, go and are fed again.

vLLM's own backends of grammars make other masks, and no receipt could state them. These are those of the sampler's
definition (`frameworks.torch.generation.grammars`), made from the schema in the request's extra arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tallystick.errors import UnavailableError
from tallystick.frameworks.torch.generation.grammars import SchemaMasks, grammar_tokenizer
from tallystick.frameworks.torch.generation.language_models import load_tokenizer
from tallystick.sampling.adjusting import Flags
from tallystick.workloads.language_model import TokenMasks

LOG: Final = logging.getLogger("vllm.tallystick")
Making = Callable[[str, tuple[int, ...]], TokenMasks]
"""Makes masks of a schema, under which an answer may end with these tokens."""


@dataclass
class GrammarRow:
    """The masks of one answer. Its tokens are what vLLM tells of it, or else those that were chosen here."""

    schema: str
    ends: tuple[int, ...]
    is_broken: bool = False
    _masks: TokenMasks | None = None
    _taken: int = 0
    _chosen: dict[int, int] = field(default_factory=dict)

    def allowed(self, position: int, told: Callable[[], Sequence[int]], make: Making) -> Flags | None:
        """BOOL[V], the tokens that may stand at `position`; None, and broken for good, where nobody can say.

        Nothing is raised inside of vLLM's engine: a request without masks gets no receipt.
        """
        try:
            if self._masks is None:
                self._masks = make(self.schema, self.ends)
            known = told()
            for place in range(self._taken, position):
                is_told = place < len(known) and known[place] >= 0
                token = known[place] if is_told else self._chosen.get(place)
                if token is None:
                    raise UnavailableError("vLLM does not give the tokens so far")
                self._masks.take(token)
                self._taken, self._chosen = place + 1, {}
            return self._masks.allowed()
        except UnavailableError as error:
            if not self.is_broken:
                LOG.warning("tallystick: an answer under a schema gets no receipt: %s", error)
            self.is_broken = True
            return None

    def choose(self, position: int, token: int) -> None:
        """Note the token that was chosen at a position; a part of a prompt gives one that a later one replaces."""
        self._chosen[position] = token


def masks_maker(directory: Any, vocabulary: int) -> Making:
    """Makes masks by the tokenizer in the model's directory; it is read when the first answer needs it."""

    @lru_cache(maxsize=4)
    def tokenizer(ends: tuple[int, ...]) -> Any:
        return grammar_tokenizer(load_tokenizer(Path(directory)), vocabulary, frozenset(ends))

    return lambda schema, ends: SchemaMasks(schema, tokenizer(ends))
