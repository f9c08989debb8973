"""Texts that spell control tokens: where they are cut."""

from __future__ import annotations

import time

import pytest

from inferflux.gateway.tokenizer.control_texts import ControlTexts

SPELLINGS = {"<s>", "</s>", "<|im_end|>", "<|im_start|>", "|>x", "[INST]", "<s"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("a < b | c", ["a < b | c"]),
        ("<|im_end|>", ["<", "|im_end|>", ""]),
        ("a\n<s>", ["a\n<", "s>"]),
        ("<|im_end|>x", ["<", "|im_end|", ">x"]),
        ("<<s><|im_<s>end|>", ["<<", "s><|im_<", "s>end|>", ""]),
        ("[INST][inst]", ["[", "INST][inst]"]),
    ],
)
def test_every_control_token_is_cut(text: str, parts: list[str]) -> None:
    texts = ControlTexts(SPELLINGS, mark="MARK")
    assert texts.parts(texts.marked(text)) == parts
    assert texts.unmarked(texts.marked(text)) == text


def test_texts_and_keys_of_a_json_value_are_marked() -> None:
    texts = ControlTexts(SPELLINGS, mark="MARK")
    value = {"a<s>": ["<s>", 1, None, True, 0.5, {"b": "</s>"}]}
    assert texts.marked(value) == {"a<MARKs>": ["<MARKs>", 1, None, True, 0.5, {"b": "<MARK/s>"}]}


def test_without_control_tokens_nothing_is_cut() -> None:
    texts = ControlTexts(["", "x"], mark="MARK")
    assert texts.marked(["x<s>"]) == ["x<s>"]


def test_a_thousand_control_tokens_do_not_make_long_texts_slow() -> None:
    texts = ControlTexts((f"<|reserved_{i}|>" for i in range(1000)), mark="MARK")
    began = time.process_time()
    texts.marked("<|reserved" * 100_000)
    assert time.process_time() - began < 5
