"""Conversations of a few characters, the tokenizer and chat template of a very small model, for trl."""

from __future__ import annotations

from typing import Any, Final

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL: Final = ("<pad>", "<eos>", "<user>", "<assistant>")
VOCABULARY: Final = 128
TEMPLATE: Final = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant>{% generation %}{{ m.content }}<eos>"
    "{% endgeneration %}{% else %}<user>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer() -> Any:
    """Every printable character is a token."""
    words = (*SPECIAL, *map(chr, range(32, 127)))
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "additional_special_tokens": ["<user>", "<assistant>"]}
    found = PreTrainedTokenizerFast(tokenizer_object=made, **names)
    found.chat_template = TEMPLATE
    return found


def chats(count: int) -> list[dict[str, Any]]:
    """Questions with their answers, all of one length."""
    return [{"messages": [*question(number), answer(2 * number)]} for number in range(10, 10 + count)]


def preferences(count: int) -> list[dict[str, Any]]:
    """Questions with a right answer and a wrong one."""
    return [
        {"prompt": question(number), "chosen": [answer(2 * number)], "rejected": [answer(3 * number)]}
        for number in range(10, 10 + count)
    ]


def prompts(count: int) -> list[dict[str, Any]]:
    """Questions alone."""
    return [{"prompt": question(number)} for number in range(10, 10 + count)]


def question(number: int) -> list[dict[str, str]]:
    """A question about a number."""
    return [{"role": "user", "content": f"{number} + {number}?"}]


def answer(number: int) -> dict[str, str]:
    """A statement of a number."""
    return {"role": "assistant", "content": f"it is {number:3d}"}
