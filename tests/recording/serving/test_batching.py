"""The batching engine: every answer is what it is alone, whoever else is in the batch, and nobody takes others down."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from tallystick.core.errors import UnavailableError
from tallystick.formats.receipt import Sampler
from tallystick.recording.receipts import batch_composition
from tallystick.recording.serving.batching import BatchingEngine
from tallystick.recording.serving.jobs import BusyError, Failed, Job, JobResult, Piece

WAIT = 120.0


class Listener:
    """Gathers what one job is told; `at` holds the engine's thread before a piece until it is let go."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.end: Any = None
        self.over = threading.Event()
        self.first = threading.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, Piece):
            self.pieces.append(event)
            self.first.set()
        else:
            assert self.end is None
            self.end = event
            self.over.set()

    def result(self) -> Any:
        assert self.over.wait(WAIT)
        return self.end


def job(number: int, listener: Any, prompt: Sequence[int] = (), tokens: int = 12, **sampler: Any) -> Job:
    settings = {"temperature": 1.0, "seed": number, **sampler}
    return Job(f"job-{number}", tuple(prompt) or tuple(range(1, 2 + number)), tokens, Sampler(**settings), listener)


@contextmanager
def running(model: Any, **sizes: Any) -> Iterator[BatchingEngine]:
    engine = BatchingEngine(model, **sizes)
    engine.start()
    yield engine
    engine.stop()


def answers(engine: BatchingEngine, jobs: Sequence[tuple[int, dict[str, Any]]], together: bool) -> list[Any]:
    listeners = []
    for number, fields in jobs:
        listeners.append(Listener())
        engine.submit([job(number, listeners[-1], **fields)])
        if not together:
            listeners[-1].result()
    return [each.result() for each in listeners]


MIXED: list[tuple[int, dict[str, Any]]] = [
    (number, {"tokens": 6 + 5 * (number % 4), "temperature": 0.0 if number % 3 == 0 else 1.0, "top_p": 0.9})
    for number in range(10)
]


def test_answers_in_a_varying_batch_are_those_given_alone(one_thread: None, long_model: Any) -> None:
    with running(long_model, rows=4, layers=(0, 1)) as engine:
        alone = answers(engine, MIXED, together=False)
        mixed = answers(engine, MIXED, together=True)
    assert [each.ids for each in mixed] == [each.ids for each in alone]
    assert {each.batch.largest for each in alone} == {1}
    assert max(each.batch.largest for each in mixed) == 4
    assert max(len(each.runs) for each in mixed) > 2, "the company did not change"
    assert len({each.batch.composition for each in mixed}) == 10
    for one, other in zip(alone, mixed, strict=True):
        for layer in (0, 1):
            torch.testing.assert_close(other.rows[layer], one.rows[layer], rtol=1e-4, atol=1e-5)


def test_hidden_rows_are_those_that_the_tokens_were_chosen_from(one_thread: None, language_model: Any) -> None:
    final = language_model.card.layers
    with running(language_model, rows=3, layers=(0, final), keeps_prompts=True) as engine:
        found = answers(engine, [(number, {"tokens": 8}) for number in range(6)], together=True)
    for each in found:
        prompt = list(each.job.prompt)
        prefill = language_model.prefill([*prompt, *each.ids[:-1]], 0, (0, final))
        for layer in (0, final):
            fed = torch.cat([each.prompt_rows[layer], each.rows[layer]])
            torch.testing.assert_close(fed, torch.from_numpy(prefill.hidden[layer]), rtol=1e-4, atol=1e-5)


def test_the_composition_says_who_was_in_the_batch_at_every_step(one_thread: None, long_model: Any) -> None:
    with running(long_model, rows=4) as engine:
        found = answers(engine, MIXED[:5], together=True)
    for each in found:
        assert sum(steps for steps, _ in each.runs) == len(each.ids)
        assert all(each.job.id in company for _, company in each.runs)
        assert each.runs[0] == (1, (each.job.id,)), "a prompt is prefilled alone"
        assert each.batch.composition == batch_composition(each.runs)


def test_an_end_token_ends_an_answer_and_is_part_of_it(one_thread: None, long_model: Any) -> None:
    with running(long_model) as engine:
        [whole] = answers(engine, [(1, {"tokens": 20})], together=True)
    end = whole.ids[7]
    ending = replace(long_model)
    ending.__dict__["end_tokens"] = frozenset({end})
    with running(ending) as engine:
        [ended] = answers(engine, [(1, {"tokens": 20})], together=True)
    assert (ended.finish, ended.ids) == ("end", whole.ids[: whole.ids.index(end) + 1])


def test_a_full_queue_refuses_and_room_in_it_accepts(one_thread: None, long_model: Any) -> None:
    with running(long_model, rows=1, queue=2) as engine:
        first, others = Listener(), [Listener() for _ in range(3)]
        running_slots = engine.submit([job(0, first, tokens=400)])
        assert first.first.wait(WAIT)
        engine.submit([job(1, others[0])])
        with pytest.raises(BusyError):
            engine.submit([job(2, others[1]), job(3, others[2])])
        last = engine.submit([job(2, others[1])])
        engine.cancel(last)
        engine.submit([job(3, others[2])])
        engine.cancel(running_slots)
        assert first.result().finish == "cancelled"
        assert [others[number].result().finish for number in (0, 2)] == ["length", "length"]
        assert others[1].end is None


def test_a_cancelled_answer_is_handed_over_as_far_as_it_came(one_thread: None, long_model: Any) -> None:
    with running(long_model, layers=(1,)) as engine:
        listener = Listener()
        slots = engine.submit([job(0, listener, tokens=500)])
        assert listener.first.wait(WAIT)
        engine.cancel(slots)
        found = listener.result()
    assert found.finish == "cancelled"
    assert 1 <= len(found.ids) == len(found.rows[1]) < 500
    assert engine.load == (0, 0)


def test_a_row_without_a_token_to_choose_fails_alone(
    one_thread: None, long_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = long_model.model.forward

    def poisoned(*arguments: Any, **named: Any) -> Any:
        output = forward(*arguments, **named)
        ids = named["input_ids"]
        if ids.shape[1] == 1 and len(ids) > 1:
            output.logits[1] = torch.nan
        return output

    monkeypatch.setattr(long_model.model, "forward", poisoned)
    with running(long_model, rows=3) as engine:
        listeners = [Listener() for _ in range(3)]
        engine.submit([job(number, listener, (1, 2, 3)) for number, listener in enumerate(listeners)])
        found = [each.result() for each in listeners]
        assert [type(each) for each in found[:2]] == [JobResult, Failed]
        assert len(found[0].ids) == 12


def test_a_failing_pass_ends_its_requests_and_not_the_engine(
    one_thread: None, long_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, fails = long_model.model.forward, threading.Event()

    def failing(*arguments: Any, **named: Any) -> Any:
        if fails.is_set():
            raise RuntimeError("out of memory")
        return forward(*arguments, **named)

    monkeypatch.setattr(long_model.model, "forward", failing)
    with running(long_model) as engine:
        for while_decoding in (True, False):
            listener = Listener()
            if not while_decoding:
                fails.set()
            engine.submit([job(0, listener, tokens=400)])
            if while_decoding:
                assert listener.first.wait(WAIT)
                fails.set()
            assert listener.result() == Failed("generation failed: RuntimeError")
            fails.clear()
        assert isinstance(answers(engine, [(1, {})], together=True)[0], JobResult)


def test_an_engine_that_stops_says_so(one_thread: None, long_model: Any) -> None:
    listener = Listener()
    with running(long_model) as engine:
        engine.submit([job(0, listener, tokens=500)])
        assert listener.first.wait(WAIT)
    assert listener.result() == Failed("the server is stopping")
    with pytest.raises(UnavailableError, match="stopping"):
        engine.submit([job(1, listener)])
