"""Recording generation: the same tokens, the rows they were chosen from, and a receipt for each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tallystick.attestation.signing import SigningKey, verify_receipt_signature
from tallystick.errors import MalformedError, UsageError
from tallystick.sampling.choice import choose
from tallystick.tolerances.fingerprints.settings import FingerprintSettings
from tallystick.transcripts.sampler import Sampler
from tallystick.workloads.fingerprints import distances

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tallystick.frameworks.torch.generation.language_models import load_language_model  # noqa: E402
from tallystick.recorders.generation import AnswerRequest, Generated, generate_plain, record_generation  # noqa: E402
from tallystick.recorders.receipts import ReceiptIssuer, RecordSettings, batch_composition  # noqa: E402

PROMPTS = [[5, 9, 17, 4, 33, 12, 80], [44, 8, 21]]
LENGTH = 8
LAYERS = (0, 1, 2)
SHAPE = {"vocab_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}
GROUPED = {**SHAPE, "intermediate_size": 64, "num_key_value_heads": 1, "max_position_embeddings": 64}
CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED, bos_token_id=None, eos_token_id=None),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=16, bos_token_id=None, eos_token_id=None),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=256, n_layer=2, n_head=2, n_embd=32, n_positions=64, bos_token_id=None, eos_token_id=None
    ),
}
STATES = RecordSettings(committed=LAYERS, prompt=True)


@pytest.fixture(scope="module")
def loaded(one_thread: None, model_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A random model of an architecture, loaded from a directory."""
    found: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in found:
            out = tmp_path_factory.mktemp(name)
            torch.manual_seed(4)
            transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).save_pretrained(out)
            for each in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(model_directory / each, out)
            found[name] = load_language_model(out)
        return found[name]

    return load


@pytest.fixture
def model(loaded: Callable[[str], Any]) -> Any:
    return loaded("qwen3")


@pytest.fixture
def issuer_of() -> Callable[..., ReceiptIssuer]:
    def make(language_model: Any, settings: RecordSettings = STATES) -> ReceiptIssuer:
        return ReceiptIssuer(language_model, SigningKey(bytes(32)), settings)

    return make


def padded(prompts: Sequence[Sequence[int]] = PROMPTS) -> dict[str, Any]:
    length = max(map(len, prompts))
    ids = [[0] * (length - len(each)) + list(each) for each in prompts]
    mask = [[0] * (length - len(each)) + [1] * len(each) for each in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def bare(language_model: Any, **given: Any) -> Any:
    """What `generate` answers without recording."""
    return language_model.model.generate(**{**padded(), "max_new_tokens": LENGTH, "pad_token_id": 0, **given})


def recorded(
    language_model: Any, issuer: ReceiptIssuer, asked: Sequence[AnswerRequest] = (), **given: Any
) -> list[Generated]:
    with record_generation(language_model, issuer, asked) as answers:
        bare(language_model, **given)
    return answers


def furthest(language_model: Any, answer: Generated) -> float:
    """The largest difference of a committed hidden state from a prefill's."""
    assert answer.issued is not None
    assert answer.issued.states is not None
    hidden = language_model.prefill(answer.prompt + answer.tokens[:-1], 0, LAYERS).hidden
    states = answer.issued.states.states
    return max(float(np.abs(states[layer].values() - hidden[layer]).max()) for layer in LAYERS)


def signed(answer: Generated) -> Any:
    assert answer.issued is not None
    verify_receipt_signature(answer.issued.signed)
    return answer.issued.signed.receipt


@pytest.mark.parametrize("name", CONFIGS)
def test_generate_answers_the_same_with_recording(loaded: Callable[[str], Any], issuer_of: Any, name: str) -> None:
    language_model = loaded(name)
    without = bare(language_model)
    with record_generation(language_model, issuer_of(language_model)) as answers:
        output = bare(language_model)
    assert torch.equal(output, without)
    assert [list(each.tokens) for each in answers] == without[:, 7:].tolist()
    assert [list(each.prompt) for each in answers] == PROMPTS
    for answer in answers:
        receipt = signed(answer)
        assert (receipt.answer.tokens.ids, receipt.answer.finish) == (answer.tokens, "length")
        assert (receipt.request.prompt.ids, receipt.request.max_tokens) == (answer.prompt, LENGTH)
        assert receipt.sampler.is_greedy
        assert receipt.states.rows == len(answer.prompt) + LENGTH - 1


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_are_those_of_a_prefill(loaded: Callable[[str], Any], issuer_of: Any, name: str) -> None:
    language_model = loaded(name)
    issuer = issuer_of(language_model)
    asked = [AnswerRequest(sampler=Sampler(seed=seed)) for seed in (1, 2)]
    for answers in (
        recorded(language_model, issuer),
        recorded(language_model, issuer, asked),
        generate_plain(language_model, PROMPTS, LENGTH, asked, issuer),
    ):
        assert len(answers) == 2
        assert max(furthest(language_model, each) for each in answers) < 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_the_plain_loop_answers_as_generate_does(loaded: Callable[[str], Any], issuer_of: Any, name: str) -> None:
    language_model = loaded(name)
    asked = [AnswerRequest(sampler=Sampler(temperature=0.8, top_k=40, seed=5)), AnswerRequest(sampler=Sampler(seed=6))]
    answers = recorded(language_model, issuer_of(language_model), asked)
    plain = generate_plain(language_model, PROMPTS, LENGTH, asked)
    assert [each.tokens for each in plain] == [each.tokens for each in answers]
    assert [each.issued for each in plain] == [None, None]


def test_fingerprints_are_those_of_a_prefill(model: Any, issuer_of: Any) -> None:
    settings = (FingerprintSettings(layers=(0, 2), block=4, bits=32), FingerprintSettings.toploc(2, values=16))
    for answer in recorded(model, issuer_of(model, RecordSettings(settings))):
        rows = model.prefill(answer.prompt + answer.tokens[:-1], len(answer.prompt) - 1, (0, 2)).hidden
        receipt = signed(answer)
        assert [each.method for each in receipt.fingerprints] == ["projection", "toploc"]
        for each in receipt.fingerprints:
            assert max(found.distance for found in distances(each, rows)) < 1e-4
        others = {layer: -each for layer, each in rows.items()}
        assert max(found.distance for found in distances(receipt.fingerprints[0], others)) > 0.5


# ---- samplers
SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2}


def test_the_settings_of_a_sampled_call_are_those_of_the_canonical_sampler(model: Any, issuer_of: Any) -> None:
    answers = recorded(model, issuer_of(model), **SAMPLED)
    seeds = {each.sampler.seed for each in answers}
    assert len(seeds) == 2
    for answer in answers:
        stated = signed(answer).sampler
        assert stated == Sampler(
            temperature=0.7, top_k=30, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=stated.seed
        )
        assert list(answer.tokens) == replayed(model, answer)


def replayed(language_model: Any, answer: Generated) -> list[int]:
    """The tokens that the canonical sampler chooses from a prefill's logits."""
    logits = language_model.prefill(answer.prompt + answer.tokens[:-1], len(answer.prompt) - 1).logits
    histories = [answer.prompt + answer.tokens[:place] for place in range(len(answer.tokens))]
    chosen: list[int] = choose(logits, answer.sampler, range(len(answer.tokens)), histories).tolist()
    return chosen


def test_every_row_has_its_own_sampler_id_and_nonce(model: Any, issuer_of: Any) -> None:
    asked = [AnswerRequest("first", "00", Sampler(seed=3)), AnswerRequest("second", "11", Sampler(temperature=0.0))]
    answers = recorded(model, issuer_of(model), asked)
    receipts = [signed(each) for each in answers]
    assert [(each.request.id, each.request.nonce) for each in receipts] == [("first", "00"), ("second", "11")]
    assert [each.sampler for each in receipts] == [each.sampler for each in asked]
    assert [list(each.tokens) for each in answers] == [replayed(model, each) for each in answers]
    alone = recorded(model, issuer_of(model), asked[:1], **padded(PROMPTS[:1]))
    assert alone[0].tokens == answers[0].tokens


def test_a_default_of_the_model_is_a_setting_too(model: Any, issuer_of: Any) -> None:
    held = model.model.generation_config
    model.model.generation_config = transformers.GenerationConfig(do_sample=True, temperature=0.5, max_length=12)
    try:
        answer = recorded(model, issuer_of(model), **padded(PROMPTS[:1]), max_new_tokens=None)[0]
    finally:
        model.model.generation_config = held
    receipt = signed(answer)
    assert (receipt.sampler.temperature, receipt.request.max_tokens) == (0.5, 12 - len(PROMPTS[0]))


def test_a_configuration_given_to_the_call_is_read_and_left_alone(model: Any, issuer_of: Any) -> None:
    config = transformers.GenerationConfig(do_sample=True, temperature=0.5, max_new_tokens=3)
    before = config.to_dict()
    with record_generation(model, issuer_of(model)) as answers:
        model.model.generate(**padded(), generation_config=config)
    assert signed(answers[0]).sampler.temperature == 0.5
    assert (len(answers[0].tokens), config.to_dict()) == (3, before)


# ---- ends
@pytest.fixture
def ending(model: Any) -> Any:
    """The model with an end token that the first answer reaches before the second."""
    answers = [each.tokens for each in generate_plain(model, PROMPTS, LENGTH)]
    token = next(each for each in answers[0][1:] if each not in answers[1])
    held = model.model.generation_config.eos_token_id
    model.model.generation_config.eos_token_id = token
    vars(model).pop("end_tokens", None)
    yield token
    model.model.generation_config.eos_token_id = held
    vars(model).pop("end_tokens", None)


def test_an_answer_is_over_at_its_end_token(model: Any, issuer_of: Any, ending: int) -> None:
    issuer = issuer_of(model)
    for answers in (recorded(model, issuer), generate_plain(model, PROMPTS, LENGTH, issuer=issuer)):
        early, late = answers
        assert (early.tokens.index(ending), early.finish) == (len(early.tokens) - 1, "end")
        assert (len(late.tokens), late.finish) == (LENGTH, "length")
        assert len(early.tokens) < LENGTH
        assert signed(early).answer.finish == "end"
        assert signed(early).states.rows == len(early.prompt) + len(early.tokens) - 1
        assert max(furthest(model, each) for each in answers) < 1e-4


def test_an_end_that_is_the_callers_is_a_stop(model: Any, issuer_of: Any) -> None:
    first = bare(model)[0, 7:].tolist()
    answer = recorded(model, issuer_of(model), eos_token_id=first[2], **padded(PROMPTS[:1]))[0]
    assert (list(answer.tokens), answer.finish) == (first[: first.index(first[2]) + 1], "stop")


def test_an_own_rule_for_stopping_is_a_stop(model: Any, issuer_of: Any) -> None:
    class AfterThree(transformers.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            return torch.full((len(input_ids),), input_ids.shape[1] >= len(PROMPTS[0]) + 3)

    rule = transformers.StoppingCriteriaList([AfterThree()])
    answer = recorded(model, issuer_of(model), stopping_criteria=rule, **padded(PROMPTS[:1]))[0]
    assert (len(answer.tokens), signed(answer).answer.finish) == (3, "stop")
    with pytest.raises(UsageError, match="one prompt at a time"):
        recorded(model, issuer_of(model), stopping_criteria=rule)


# ---- batches
def test_a_batch_says_how_large_it_was_and_whose_its_rows_were(model: Any, issuer_of: Any) -> None:
    answers = recorded(model, issuer_of(model), [AnswerRequest("a"), AnswerRequest("b")])
    composition = batch_composition([(LENGTH, ["a", "b"])])
    assert [(signed(each).batch.largest, signed(each).batch.composition) for each in answers] == [(2, composition)] * 2


def test_a_mask_is_needed_only_where_there_is_padding(model: Any, issuer_of: Any) -> None:
    ids = torch.tensor([PROMPTS[1]])
    answers = [recorded(model, issuer_of(model), input_ids=ids, attention_mask=each) for each in (None, ids > 0)]
    assert answers[0][0].tokens == answers[1][0].tokens


def test_calls_are_recorded_one_after_another(model: Any, issuer_of: Any) -> None:
    with record_generation(
        model, issuer_of(model), [AnswerRequest("a"), AnswerRequest("b"), AnswerRequest("c")]
    ) as answers:
        bare(model)
        bare(model, **padded(PROMPTS[:1]))
        bare(model, **padded(PROMPTS[1:]))
    ids = [signed(each).request.id for each in answers]
    assert ids[:3] == ["a", "b", "c"]
    assert len(set(ids)) == 4
    assert [signed(each).sequence for each in answers] == [1, 2, 3, 4]


# ---- caches and calls
CALLS: dict[str, dict[str, Any]] = {
    "a static cache": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
    "chunks of the prompt": {"prefill_chunk_size": 3, "cache_implementation": "static"},
    "a dictionary of results": {"return_dict_in_generate": True, "output_scores": True},
    "hidden states for the caller": {"return_dict_in_generate": True, "output_hidden_states": True},
    "no limit of time": {"max_time": 1e6},
}


@pytest.mark.parametrize("how", CALLS)
def test_any_way_of_calling_is_recorded(model: Any, issuer_of: Any, how: str) -> None:
    without = bare(model)[:, 7:].tolist()
    answers = recorded(model, issuer_of(model), **CALLS[how])
    assert [list(each.tokens) for each in answers] == without
    assert max(furthest(model, each) for each in answers) < 1e-4


def test_a_prompt_that_is_in_the_cache_already_is_recorded(model: Any, issuer_of: Any) -> None:
    single, cache = padded(PROMPTS[:1]), transformers.DynamicCache(config=model.model.config)
    with torch.inference_mode():
        model.model(input_ids=single["input_ids"][:, :4], past_key_values=cache)
    settings = RecordSettings(committed=LAYERS)
    answer = recorded(model, issuer_of(model, settings), past_key_values=cache, **single)[0]
    hidden = model.prefill(answer.prompt + answer.tokens[:-1], len(answer.prompt) - 1, LAYERS).hidden
    assert answer.issued is not None
    assert answer.issued.states is not None
    for layer in LAYERS:
        assert np.abs(answer.issued.states.states[layer].values() - hidden[layer]).max() < 1e-4


class Nothing(transformers.LogitsProcessor):
    """Changes no score."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "num_beams"),
    "several answers": ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences"),
    "a processor of the caller's": ({"logits_processor": [Nothing()]}, "logits_processor"),
    "words that are forbidden": ({"bad_words_ids": [[3]]}, "bad_words_ids"),
    "tokens that are suppressed": ({"suppress_tokens": [3]}, "suppress_tokens"),
    "another filter": ({"do_sample": True, "typical_p": 0.5}, "typical_p"),
    "no repeated pairs": ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
    "a least length": ({"min_new_tokens": 2}, "min_new_tokens"),
    "guidance": ({"guidance_scale": 2.0}, "guidance_scale"),
    "look-up in the prompt": ({"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens"),
    "a function for tokens": ({"prefix_allowed_tokens_fn": lambda *_: [1]}, "prefix_allowed_tokens_fn"),
    "no limit": ({"max_new_tokens": None}, "max_new_tokens"),
    "padding without a mask": ({"attention_mask": None}, "attention_mask is needed"),
    "positions of the caller's": ({"position_ids": torch.arange(7).repeat(2, 1)}, "position_ids"),
    "kinds of tokens": ({"token_type_ids": torch.zeros(2, 7, dtype=torch.int64)}, "token_type_ids"),
    "batches that others join": ({"cache_implementation": "paged"}, "continuous batching"),
    "embeddings": ({"inputs_embeds": torch.zeros(2, 7, 32)}, "inputs_embeds"),
    "a temperature beyond all": ({"do_sample": True, "temperature": 1e9}, "temperature"),
    "padding on the right": ({"attention_mask": padded()["attention_mask"].flip(1)}, "pad prompts on the left"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_receipt_does_not_describe_is_refused(model: Any, issuer_of: Any, what: str) -> None:
    given, named = REFUSED[what]
    issuer = issuer_of(model)
    with pytest.raises(UsageError, match=named):
        recorded(model, issuer, **given)
    assert issuer.sequence == 0
    assert len(recorded(model, issuer)) == 2


def test_an_assistant_is_refused(model: Any, issuer_of: Any) -> None:
    with pytest.raises(UsageError, match="assistant_model"):
        recorded(model, issuer_of(model), assistant_model=model.model, **padded(PROMPTS[:1]))


def test_afterwards_the_model_is_as_it_was(model: Any, issuer_of: Any) -> None:
    hooks = [len(each._forward_hooks) for each in model.model.modules()]

    def fail(*_: Any) -> None:
        raise FloatingPointError

    recorded(model, issuer_of(model))
    with pytest.raises(FloatingPointError):
        recorded(model, issuer_of(model), prefix_allowed_tokens_fn=None, streamer=Streamer(fail))
    assert "generate" not in vars(model.model)
    assert [len(each._forward_hooks) for each in model.model.modules()] == hooks


class Streamer:
    """Hands every token to a function."""

    def __init__(self, put: Any) -> None:
        self.put = put

    def end(self) -> None:
        """Nothing is held back."""


def test_the_plain_loop_says_what_it_cannot_do(model: Any) -> None:
    cases: list[tuple[list[list[int]], int, type[Exception], str]] = [
        ([], 3, UsageError, "at least one"),
        ([[1]], 0, UsageError, "at least one"),
        ([[]], 3, MalformedError, "tokens: none"),
        ([[256]], 3, MalformedError, "outside the vocabulary"),
        ([[1] * 60], 6, UsageError, "64 positions"),
    ]
    for prompts, count, error, what in cases:
        with pytest.raises(error, match=what):
            generate_plain(model, prompts, count)
    assert len(generate_plain(model, [[1] * 60], 5)[0].tokens) == 5


@pytest.mark.parametrize(("name", "nonce"), [("../x", None), ("", None), ("a", "0"), ("a", "zz"), ("a", "00" * 65)])
def test_an_id_or_nonce_that_no_receipt_holds_is_refused_before_any_work(name: str, nonce: str | None) -> None:
    with pytest.raises(UsageError, match=r"request: (id|nonce)"):
        AnswerRequest(name, nonce)
    assert AnswerRequest("a", "00").nonce == "00"
