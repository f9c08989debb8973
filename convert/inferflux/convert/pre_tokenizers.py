"""Mapping of a tokenizer.json to llama.cpp's pre-tokenizers of byte-level BPE (pure).

llama.cpp's own converter runs the tokenizer on a text and looks its tokens' hash up. Here the expressions
themselves are compared: no tokenizer has to run, and a model with another vocabulary is known as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .fields import Fields

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OPEN: Final = r"[^\r\n\p{L}\p{N}]?"
_NUMBER: Final = r"\p{N}"
_GPT2: Final = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_QWEN35: Final = (
    _CONTRACTIONS,
    rf"{_OPEN}[\p{{L}}\p{{M}}]+",
    _NUMBER,
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    _TAIL,
)
_TEKKEN: Final = (
    f"{_OPEN}{_UPPER}*{_LOWER}+",
    f"{_OPEN}{_UPPER}+{_LOWER}*",
    _NUMBER,
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    _TAIL,
)
_BY_SPLITS: Mapping[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2",
    ("digits", _GPT2): "smollm",
    ("|".join((_CONTRACTIONS, rf"{_OPEN}\p{{L}}+", r"\p{N}{1,3}", _SIGNS, _TAIL)),): "llama-bpe",
    ("|".join((_CONTRACTIONS, rf"{_OPEN}\p{{L}}+", _NUMBER, _SIGNS, _TAIL)),): "qwen2",
    ("|".join(_QWEN35),): "qwen35",
    ("|".join(_TEKKEN),): "tekken",
}


def pre_tokenizer_of(tokenizer: Fields) -> str:
    """llama.cpp's name of how a tokenizer.json splits texts.

    Raises:
        ConversionError: it splits them in a way that is not known here.
    """
    pre = tokenizer.inner("pre_tokenizer")
    if pre is None:
        raise tokenizer.error("pre_tokenizer", "it is missing")
    splits: list[str] = []
    for part in pre.items("pretokenizers") if pre.text("type", "") == "Sequence" else [pre.values]:
        splits += _splits(part if isinstance(part, dict) else {}, pre)
    found = _BY_SPLITS.get(tuple(splits))
    if found is None:
        raise tokenizer.error("pre_tokenizer", f"texts are split by {splits!r:.300}, which is not known")
    return found


def _splits(part: dict[str, Any], of: Fields) -> list[str]:
    """Expressions that one pre-tokenizer part splits by."""
    fields = Fields(part, of.said)
    kind = fields.text("type", "")
    if kind == "ByteLevel":
        if fields.flag("add_prefix_space", False):
            raise of.error("add_prefix_space", "a blank before each text is not converted")
        return [_GPT2] if fields.flag("use_regex", True) else []
    if kind == "Digits" and fields.flag("individual_digits", False):
        return ["digits"]
    if kind == "Split":
        pattern = fields.inner("pattern")
        behaviour, inverts = fields.text("behavior", ""), fields.flag("invert", False)
        # Both give the same pieces where the expression matches all of a text.
        if pattern is not None and (behaviour, inverts) in (("Isolated", False), ("Removed", True)):
            return [pattern.text("Regex", pattern.text("String", ""))]
    raise of.error("type", f"{kind[:40]!r} is not converted")
