"""Control tokens that a client's texts spell: they stay text (pure).

A prompt is text until it is tokenized. Without this, a tool's result with `<|im_end|>` would end its own
message and begin another one, with any role. So texts are marked before the chat template renders them, and
the prompt is cut at the marks. Its parts are tokenized one by one, so no token goes across a cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

_Trie: TypeAlias = dict[str, "_Trie"]
# A spelling ends where the trie has this key.
_END = ""


class ControlTexts:
    """Marks texts, and cuts prompts.

    Args:
        spellings: of the control tokens, each of two characters or more; shorter ones cannot be cut.
        mark: a text that no other text has by chance. Letters and digits, so that no template escapes it.
    """

    def __init__(self, spellings: Iterable[str], *, mark: str) -> None:
        known = [spelling for spelling in spellings if len(spelling) > 1]
        trie: _Trie = {}
        for spelling in known:
            _add(trie, spelling)
        # At every place, since two spellings may overlap.
        self._beginning = re.compile(f"(?={_pattern(trie)})(.)", re.DOTALL) if trie else None
        self._mark = mark
        # Of a spelling that a template completes, before or after a text.
        self._heads = {spelling[:n] for spelling in known for n in range(1, len(spelling))}
        self._tails = {spelling[n:] for spelling in known for n in range(1, len(spelling) - 1)}
        self._middles = "\0".join(known)
        self._longest = max(map(len, known), default=0)

    def marked(self, value: Any) -> Any:
        """A JSON value with marks where one of its texts or keys spells a control token, or a part of one at
        its beginning or end."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, Mapping):
            return {self.marked(key): self.marked(each) for key, each in value.items()}
        if isinstance(value, Sequence):
            return [self.marked(each) for each in value]
        return value

    def marked_but(self, text: str, looked_for: Iterable[str]) -> str:
        """The same; a text that the template looks for is left in its first place, so that it is found."""
        kept = sorted((text.find(each), each) for each in looked_for if each and each in text)
        pieces: list[str] = []
        at = 0
        for place, each in kept:
            if place >= at:
                pieces += [self._marked(text[at:place]), each]
                at = place + len(each)
        return "".join([*pieces, self._marked(text[at:])])

    def parts(self, text: str) -> list[str]:
        """A text without its marks, cut where they were."""
        return text.split(self._mark)

    def unmarked(self, text: str) -> str:
        return text.replace(self._mark, "")

    def _marked(self, text: str) -> str:
        if self._beginning is None or not text:
            return text
        starts = any(text[:n] in self._tails for n in range(2, min(len(text), self._longest) + 1))
        ends = any(text[-n:] in self._heads for n in range(1, min(len(text), self._longest) + 1))
        marked = self._beginning.sub(rf"\g<1>{self._mark}", text)
        is_middle = (
            marked == text and 1 < len(text) < self._longest and not text.isalnum() and text in self._middles
        )
        before = self._mark if starts or is_middle else ""
        return f"{before}{marked}{self._mark}" if ends else f"{before}{marked}"


def _add(trie: _Trie, spelling: str) -> None:
    for character in spelling:
        trie = trie.setdefault(character, {})
    trie[_END] = {}


def _pattern(trie: _Trie) -> str:
    """Matches the shortest spelling: where one begins is all that matters.

    A trie, since a thousand alternatives would be tried at each `<` of a long text.
    """
    if _END in trie:
        return ""
    branches = [re.escape(character) + _pattern(rest) for character, rest in trie.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
