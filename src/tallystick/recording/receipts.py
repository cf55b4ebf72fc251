"""Issues signed receipts, and keeps committed hidden states for challenges."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import torch
import transformers

from tallystick.core.canonical_json import encode
from tallystick.core.digests import HASH_BYTES, Digest, digest
from tallystick.core.errors import UnavailableError, UsageError
from tallystick.engines.torch.environment import describe_environment
from tallystick.engines.torch.generation.language_models import TorchLanguageModel
from tallystick.engines.torch.generation.layer_tap import States, commit_states, make_fingerprint
from tallystick.formats.claims import ModelCard
from tallystick.formats.fingerprints import PUBLIC_SEED, FingerprintSettings
from tallystick.formats.hidden_states import CommittedStates, StatesOpening
from tallystick.formats.receipt import (
    SIGNED,
    Answer,
    BatchStatement,
    EngineStatement,
    Receipt,
    Request,
    Sampler,
    SignedReceipt,
)
from tallystick.formats.signing import SigningKey
from tallystick.formats.store.receipts import ReceiptLog, SpilledStates

# A cache of committed hidden states for challenges: the latest in memory, older ones on disk, if a folder was given.

HELD_BYTES_MAX: Final = 1 << 30


class HeldStates:
    """States by request, at most `bytes_max` bytes in memory; the oldest leave first, and larger states at once.

    What leaves goes to `spilled`, or is dropped.
    """

    def __init__(self, bytes_max: int = HELD_BYTES_MAX, spilled: SpilledStates | None = None) -> None:
        self.bytes_max, self._spilled = bytes_max, spilled
        self._held: OrderedDict[str, CommittedStates] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def size_bytes(self) -> int:
        """The bytes in use, by states and by the hashes of their leaves."""
        return self._bytes

    def hold(self, request_id: str, states: CommittedStates) -> None:
        """Keep the states of a request, and drop earlier states of the same request."""
        leaving: list[tuple[str, CommittedStates]] = []
        with self._lock:
            if request_id in self._held:
                self._pop(request_id)
            self._held[request_id] = states
            self._bytes += _size(states)
            if _size(states) > self.bytes_max:
                leaving.append(self._pop(request_id))
            while self._bytes > self.bytes_max:
                leaving.append(self._pop(next(iter(self._held))))
        self._spill(leaving)

    def of(self, request_id: str) -> CommittedStates:
        """The states of a request; raises `UnavailableError` if they were dropped or never kept."""
        with self._lock:
            states = self._held.get(request_id)
        if states is None and self._spilled is not None:
            states = self._spilled.of(request_id)
        if states is None:
            disk = "" if self._spilled is None else f" in memory and {self._spilled.bytes_max} on disk"
            raise UnavailableError(
                f"the hidden states of request {request_id} are not held: "
                f"only the latest are, up to {self.bytes_max} bytes{disk}"
            )
        return states

    def close(self) -> None:
        """Write what is in memory to disk, if there is a place for it, so that a restarted server has it."""
        if self._spilled is None:
            return
        with self._lock:
            leaving = [self._pop(request_id) for request_id in [*self._held]]
        self._spill(leaving)
        self._spilled.close()

    def _pop(self, request_id: str) -> tuple[str, CommittedStates]:
        states = self._held.pop(request_id)
        self._bytes -= _size(states)
        return request_id, states

    def _spill(self, leaving: list[tuple[str, CommittedStates]]) -> None:
        if self._spilled is not None:
            for request_id, states in leaving:
                self._spilled.take(request_id, states)


def _size(states: CommittedStates) -> int:
    return states.size_bytes + HASH_BYTES * len(states.leaves)


# Issues signed receipts, and keeps committed hidden states for challenges.
#
# A key's receipts are numbered from 1, and each names the one before. A receipt is in the journal before it is
# returned. So a provider that is killed continues with the next number, and a missing number means that a receipt was
# withheld.

NATIVE: Final = "native"


@dataclass(frozen=True)
class RecordSettings:
    """What receipts contain besides tokens: fingerprints, and a commitment to the states of `committed` layers.

    All projections have one seed; `UsageError` otherwise.

    `block` is the number of rows under one leaf of the commitment. With `prompt` it covers the prompt's rows too. A
    `private` receipt has only digests of the tokens. With `sync` the journal survives a loss of power.
    """

    fingerprints: tuple[FingerprintSettings, ...] = ()
    committed: tuple[int, ...] = ()
    block: int = 32
    prompt: bool = False
    private: bool = False
    sync: bool = False

    def __post_init__(self) -> None:
        if len({each.seed for each in self.fingerprints if each.seed}) > 1:
            raise UsageError("fingerprints: several seeds; logits are kept at the entries that one seed draws")

    @property
    def seed(self) -> str:
        """The seed of the projections, which also draws the entries of the logits."""
        return next((each.seed for each in self.fingerprints if each.seed), PUBLIC_SEED)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose hidden states are needed, ascending."""
        return tuple(sorted({layer for each in self.fingerprints for layer in each.layers} | set(self.committed)))


@dataclass(frozen=True)
class Issued:
    """A signed receipt, its identity, and the hidden states that it commits to, if any."""

    signed: SignedReceipt
    identity: Digest
    states: CommittedStates | None = None


class ReceiptChain:
    """Numbers, links and signs the receipts of one model under one key; several threads may call it.

    A `private` chain states digests and counts of tokens, not the tokens. With `sync` the journal survives a loss of
    power.

    Raises:
        UsageError: another process writes to the journal, or it belongs to another key.
        MalformedError: the journal's last line is no receipt.
    """

    def __init__(
        self, model: Digest, key: SigningKey, journal: Path | None = None, *, private: bool = False, sync: bool = False
    ) -> None:
        self.model, self.key, self._is_private = model, key, private
        self._log = None if journal is None else ReceiptLog(journal, sync)
        last = None if self._log is None else self._log.last
        if last is not None and last.key != key.public:
            self.close()
            raise UsageError(f"{journal}: the journal of another key; give each key its own")
        self.sequence = 0 if last is None else last.receipt.sequence
        self._previous = None if last is None else last.receipt.identity
        self._lock = threading.Lock()

    def sign(self, request: Request, answer: Answer, **stated: Any) -> tuple[SignedReceipt, Digest]:
        """The next receipt, in the journal before it is returned, and its identity; `stated` are its other fields.

        Raises `UsageError` if the receipt is too long to be read, `OSError` if the journal cannot be written; the next
        receipt then gets the same number.
        """
        if self._is_private:
            request = request.model_copy(update={"prompt": request.prompt.model_copy(update={"ids": None})})
            answer = answer.model_copy(update={"tokens": answer.tokens.model_copy(update={"ids": None})})
        with self._lock:
            receipt = Receipt(
                model=self.model,
                request=request,
                answer=answer,
                sequence=self.sequence + 1,
                previous=self._previous,
                **stated,
            )
            content = receipt.to_bytes()  # canonical JSON of many tokens is the costliest part: encoded once
            signed = SignedReceipt(receipt=receipt, key=self.key.public, signature=self.key.sign(SIGNED + content))
            if self._log is not None:
                names = signed.key.encode(), content, signed.signature.encode()
                self._log.append(signed, b'{"key":"%s","receipt":%s,"signature":"%s"}' % names)
            self.sequence, self._previous = receipt.sequence, digest("receipt", content)
            return signed, self._previous

    def close(self) -> None:
        """Close the journal, so that another process may write to it."""
        if self._log is not None:
            self._log.close()


class ReceiptIssuer:
    """Issues receipts with fingerprints and commitments of one model under one key; several threads may call it.

    Raises what `ReceiptChain` raises. Committed states are kept for challenges in `held`, at most `held_bytes_max`
    bytes. A model that another engine runs is given as its card, and with it the `engine` that receipts state.
    """

    def __init__(
        self,
        language_model: TorchLanguageModel | ModelCard,
        key: SigningKey,
        settings: RecordSettings | None = None,
        journal: Path | None = None,
        *,
        graph: Digest | None = None,
        engine: EngineStatement | None = None,
        held_bytes_max: int = HELD_BYTES_MAX,
        spilled: SpilledStates | None = None,
    ) -> None:
        self.settings = settings or RecordSettings()
        if engine is None:
            if isinstance(language_model, ModelCard):
                raise UsageError("engine: a model that is given as its card runs elsewhere; state what runs it")
            engine = describe_engine(language_model, graph)
        card = language_model if isinstance(language_model, ModelCard) else language_model.card
        self.key, self.public, self.model, self.engine = key, key.public, card.identity, engine
        self.held = HeldStates(held_bytes_max, spilled)
        own = self.settings
        self._chain = ReceiptChain(self.model, key, journal, private=own.private, sync=own.sync)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sequence(self) -> int:
        """The number of the receipt issued last; 0 before the first."""
        return self._chain.sequence

    def close(self) -> None:
        """Close the journal, and keep states that are to be kept."""
        self.held.close()
        self._chain.close()

    def issue(
        self,
        request: Request,
        answer: Answer,
        sampler: Sampler,
        rows: States,
        batch: BatchStatement | None = None,
        prompt_rows: States | None = None,
        kv_cache: str = NATIVE,
    ) -> Issued:
        """The signed receipt of one answer of n tokens, in the journal before it is returned.

        `rows` has by layer the hidden states [n, width] from which the tokens were chosen, and for the layer behind the
        final norm the logits, at the entries that `settings.seed` draws. `prompt_rows` has those
        [P − 1, width] of the prompt's tokens except the last; it is needed if the settings commit to the prompt.
        `kv_cache` names the kind of cache if it does not hold keys and values as they were computed. An answer without
        tokens has neither fingerprints nor states.

        Raises:
            UsageError: rows are missing or not n, or the receipt is too long to be read.
            OSError: the journal cannot be written; the next receipt gets the same number.
        """
        _check_rows(rows, self.settings.layers, answer.tokens.count)
        has_rows = answer.tokens.count > 0
        states = self._commit(rows, prompt_rows, request) if has_rows else None
        fingerprints = tuple(make_fingerprint(rows, each) for each in self.settings.fingerprints if has_rows)
        signed, identity = self._chain.sign(
            request,
            answer,
            sampler=sampler,
            engine=self.engine if kv_cache == NATIVE else self.engine.model_copy(update={"kv_cache": kv_cache}),
            batch=batch or BatchStatement(),
            fingerprints=fingerprints,
            states=None if states is None else states.statement,
        )
        if states is not None:
            self.held.hold(request.id, states)
        return Issued(signed, identity, states)

    def challenge(self, request_id: str, nonce: bytes, count: int = 1, layer: int | None = None) -> StatesOpening:
        """The committed states that `nonce` selects, or those that judge `layer`, with proofs.

        Raises `UnavailableError` if they are not kept, `UsageError` if they are not committed to.
        """
        return self.held.of(request_id).open(nonce, count, layer)

    def _commit(self, rows: States, prompt_rows: States | None, request: Request) -> CommittedStates | None:
        if not self.settings.committed:
            return None
        if self.settings.prompt:
            _check_rows(prompt_rows or {}, self.settings.committed, request.prompt.count - 1)
            assert prompt_rows is not None
            rows = {layer: torch.cat([prompt_rows[layer], rows[layer]]) for layer in self.settings.committed}
        return commit_states(rows, self.settings.committed, self.settings.block, prompt=self.settings.prompt)


def describe_engine(language_model: TorchLanguageModel, graph: Digest | None = None) -> EngineStatement:
    """The engine of this process: transformers on PyTorch, its attention, and the digest of the stack."""
    device: Literal["cpu", "cuda"] = "cuda" if language_model.device.startswith("cuda") else "cpu"
    return EngineStatement(
        name="transformers",
        version=f"{transformers.__version__}, torch {torch.__version__}",
        device=language_model.device,
        attention=str(language_model.model.config._attn_implementation),
        environment=describe_environment(device).stack_digest,
        graph=graph,
    )


def batch_composition(spans: Sequence[tuple[int, Sequence[str]]]) -> Digest:
    """The digest of a batch's rows: spans of passes in order, each with the request ids of its rows."""
    return digest("batch", encode([{"passes": passes, "rows": list(rows)} for passes, rows in spans]))


def _check_rows(rows: States, layers: Sequence[int], count: int) -> None:
    for layer in layers if count else ():
        if layer not in rows or len(rows[layer]) != count:
            found = len(rows[layer]) if layer in rows else "no"
            raise UsageError(f"layer {layer}: {found} rows of hidden states for {count} tokens")
