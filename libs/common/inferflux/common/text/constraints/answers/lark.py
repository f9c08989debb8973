"""Pieces of llguidance's Lark: markers as text or control tokens, loose blanks, rules by name (pure)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from inferflux.common.contract.requests.answer_spelling import Part, markers

# The id of the control token that is spelled so; None where the marker is text.
ControlToken = Callable[[str], int | None]

ANY = r"(.|\n)*"
BLANKS = r"[ \t\n]{0,16}"
# One in MiniMax's way, too.
_MARKER = re.compile(r"(\]<\]\w+\[>\[|<[^<>\s]*>|\[[^\[\]\s]*\])")
_SIGNS = "<>[]{}(),:;=|"
_SPECIAL = re.compile(r"[\\/.+*?()\[\]{}^$|&~#\"-]")


def pattern_of(text: str) -> str:
    """A regular expression of exactly this text."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], text).replace("\n", "\\n").replace("\t", "\\t")


def loose_pattern(text: str) -> str:
    """A regular expression of a text with other blanks, or none, where readers take them: where the text has
    some beside a sign, and between two markers."""
    made = []
    parts = re.split(r"(\s+)", text)
    for i, part in enumerate(parts):
        if not part.isspace():
            made.append(_apart(markers(part)))
            continue
        beside = parts[i - 1][-1:] + parts[i + 1][:1]
        joins_words = len(beside) == 2 and not any(sign in _SIGNS for sign in beside)
        made.append(pattern_of(part) if joins_words else BLANKS)
    return "".join(made)


def _apart(parts: Sequence[Part]) -> str:
    """Blanks may be between two markers; beside a word that models leave out, none."""
    made = ""
    for before, part in zip([None, *parts], parts, strict=False):
        is_beside = before is None or before.is_optional or part.is_optional
        made += pattern_of(part.text) if is_beside else BLANKS + pattern_of(part.text)
    return made


class SpellingError(Exception):
    """A name cannot be written in this syntax; says why."""


class Lark:
    """A grammar that is being written.

    Args:
        control: which markers are control tokens.
        ends: ids of control tokens that end a generation.
    """

    def __init__(self, control: ControlToken, ends: AbstractSet[int] = frozenset()) -> None:
        self._control = control
        self._ends = ends
        self._rules: list[str] = []
        # By what rules are.
        self._names: dict[str, str] = {}
        self._n_fresh = 0
        # Terminals of markers: most come again and again.
        self._exact: dict[str, str] = {}
        self._loosened: dict[str, str] = {}

    def text(self) -> str:
        return "\n".join(["%llguidance {}", *self._rules]) + "\n"

    def rule(self, name: str, body: str, *, of: str = "") -> str:
        """Add a rule.

        Args:
            of: what is between its name and the colon.
        """
        self._rules.append(f"{name}{of}: {body}")
        return name

    def fresh(self, kind: str) -> str:
        """A name that no rule has."""
        self._n_fresh += 1
        return f"{kind}_{self._n_fresh}"

    def shared(self, kind: str, body: str, *, of: str = "") -> str:
        """The name of a rule, or of a terminal, of this body; there is one of each."""
        key = f"{kind}{of} {body}"
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self.fresh(kind)
            self.rule(name, body, of=of)
        return name

    def pieces(self, text: str) -> list[str | int]:
        """A text cut at its control tokens, which are ids."""
        return [part if token is None else token for part, token in self._cut(text)]

    def _cut(self, text: str) -> list[tuple[str, int | None]]:
        """The same, each piece with its text."""
        made: list[tuple[str, int | None]] = []
        for part in _MARKER.split(text):
            token = self._control(part) if _MARKER.fullmatch(part) else None
            if token is None and made and made[-1][1] is None:
                made[-1] = (made[-1][0] + part, None)
            elif part:
                made.append((part, token))
        return made

    def exact(self, text: str) -> str:
        """Terminals of exactly this text; "" for none."""
        made = self._exact.get(text)
        if made is None:
            pieces = self.pieces(text)
            made = _joined(f"<[{p}]>" if isinstance(p, int) else quoted(p) for p in pieces)
            self._exact[text] = made
        return made

    def loose(self, text: str) -> str:
        """Terminals of this text, whose blanks may be others."""
        if (known := self._loosened.get(text)) is not None:
            return known
        made = ""
        for piece, following in itertools.zip_longest(cut := self._cut(text), cut[1:], fillvalue=("", None)):
            mark, token = piece
            # A control token is a marker by itself, unless readers take it together with what follows.
            is_separate = token is not None and following[0] and markers(mark + following[0])[0].text == mark
            term = self._loose(mark if token is None else token)
            made = _joined([made, term, self.blanks() if is_separate else ""])
        self._loosened[text] = made
        return made

    def last(self, text: str) -> str:
        """The same at the end of an answer: what ends the generation there is left to end it."""
        pieces = self.pieces(text.rstrip())
        while pieces and isinstance(pieces[-1], int) and pieces[-1] in self._ends:
            pieces.pop()
        return _joined(self._loose(piece) for piece in pieces)

    def loose_from_blanks(self, text: str) -> str:
        """The same with blanks before it, in its first terminal unless that is a control token."""
        first, *rest = self.pieces(text)
        if isinstance(first, int):
            return f"{self.blanks()} {self.loose(text)}"
        pattern = BLANKS + loose_pattern(first).removeprefix(BLANKS)
        return _joined([f"/{pattern}/", *(self._loose(piece) for piece in rest)])

    def blanks(self) -> str:
        """Some blanks, or none. A rule: an option is a symbol of the grammar, which has 65,000 at most."""
        return self.shared("blanks", self.shared("BLANKS", r"/[ \t\n]{1,16}/") + "?")

    def until(self, marker: str, *, head: str = "") -> str:
        """Any text up to a marker, and the marker.

        Args:
            head: a regular expression of what the text is instead of any.
        """
        pieces = self.pieces(marker.strip())
        first, rest = pieces[0], _joined(self._loose(p) for p in pieces[1:])
        if isinstance(first, int):
            return _joined([self.shared("TEXT", f"/{head or ANY}/") + "?", f"<[{first}]>", rest])
        lead = first.split()[0] if first.split() else first
        if not head:
            made = self.shared("until", f"/{ANY}{pattern_of(lead)}/", of="[lazy]")
        else:
            body = f"/({head}){pattern_of(lead)}/ & ~/{ANY}{pattern_of(lead)}(.|\\n)+/"
            made = self.shared("until", self.shared("UNTIL", body), of="[lazy]")
        return _joined([made, self._loose(first[len(lead) :]), rest])

    def _loose(self, piece: str | int) -> str:
        if isinstance(piece, int):
            return f"<[{piece}]>"
        pattern = loose_pattern(piece)
        core = pattern.removeprefix(BLANKS).removesuffix(BLANKS)
        # Blanks at the edges are terminals of their own: what goes on behind them shows later.
        before = self.blanks() if pattern.startswith(BLANKS) else ""
        after = self.blanks() if core and pattern.endswith(BLANKS) else ""
        is_exact = core == pattern_of(piece.strip())
        middle = quoted(piece.strip()) if is_exact else f"/{core}/"
        return _joined([before, middle if core else "", after])


def quoted(text: str) -> str:
    """A terminal of exactly this text."""
    return json.dumps(text, ensure_ascii=False)


def _joined(terms: Iterable[str]) -> str:
    return " ".join(term for term in terms if term)
