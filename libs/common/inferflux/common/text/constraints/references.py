"""References of a JSON schema: from what they say to the place in the same text that they mean (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin

from .reading import MAX_DEPTH, Json, keywords

# Their values are no schemas, whatever they look like.
_DATA: Final = frozenset({"enum", "const", "default", "examples", "example"})
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


def escaped(name: str) -> str:
    """A name in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


class References:
    """The names of the places of a schema: `$id` and `id`, anchors, and JSON pointers.

    Args:
        document: JSON.
        draft: its number. Up to 4, `id` says what `$id` says.
    """

    def __init__(self, document: Json, draft: int) -> None:
        self._document, self._draft = document, draft
        # Of a place that has an identifier of its own: what references below it are relative to.
        self._bases: dict[str, str] = {"#": ""}
        self._places: dict[str, str] = {"": "#"}
        # Of a place: the length of the longest chain of references from there.
        self._chains: dict[str, float] = {}
        for value, path, base in _schemas(document, has_old_ids=draft <= 4):
            resource, fragment = urldefrag(base)
            self._bases[path] = resource
            self._places.setdefault(f"{resource}#{fragment}" if fragment else resource, path)
            for name in _ANCHORS:
                if isinstance(anchor := value.get(name), str):
                    self._places.setdefault(f"{resource}#{anchor}", path)

    def base_of(self, path: str) -> str:
        """Return what references at a place are relative to."""
        while path not in self._bases:
            path = path.rpartition("/")[0]
        return self._bases[path]

    def find(self, reference: str, path: str) -> tuple[str, Json] | None:
        """The place, a JSON pointer that begins with `#`, and the value of a reference at `path`.

        One that means nothing where it stands is tried from the whole schema: many tools mean that.
        """
        for base in dict.fromkeys((self.base_of(path), "")):
            try:
                resource, fragment = urldefrag(urljoin(base, reference))
            except ValueError:
                return None
            if (place := self._places.get(f"{resource}#{fragment}" if fragment else resource)) is not None:
                return place, self._at(place)
            root = self._places.get(resource)
            if root is not None and fragment.startswith("/"):
                found = self._below(root, unquote(fragment))
                if found is not None:
                    return found
        return self._below("#", unquote(reference[1:])) if reference.startswith("#/") else None

    def chain(self, place: str, value: Json, depth: int = 0) -> float:
        """Number of references that follow each other from a place on, all applied to the same value.

        Infinite where they come back to themselves: JSON Schema leaves open what such a schema means.
        """
        if (known := self._chains.get(place)) is not None or depth > MAX_DEPTH:
            return MAX_DEPTH if known is None else known
        self._chains[place] = math.inf  # for those that come back to it
        found = [self.find(reference, path) for reference, path in self._applied(value, place)]
        lengths = [1 + self.chain(*target, depth + 1) for target in found if target is not None]
        self._chains[place] = max(lengths, default=0)
        return self._chains[place]

    def _applied(self, value: Json, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
        """The references that apply to whatever the schema at a place does, with their places."""
        if not isinstance(value, dict) or depth > MAX_DEPTH:
            return
        for name, of, spelled in keywords(value, self._draft):
            if name == "$ref" and isinstance(of, str):
                yield of, f"{path}/{spelled}"
            elif name == "allOf" and isinstance(of, list):
                for i, one in enumerate(of):
                    yield from self._applied(one, f"{path}/allOf/{i}", depth + 1)

    def _at(self, place: str) -> Json:
        found = self._below("#", place[1:])
        return None if found is None else found[1]

    def _below(self, place: str, pointer: str) -> tuple[str, Json] | None:
        value = self._document if place == "#" else self._at(place)
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
            place = f"{place}/{escaped(name)}"
        return place, value


def _schemas(document: Json, *, has_old_ids: bool) -> Iterator[tuple[dict[str, Json], str, str]]:
    """Every object that has a name, with its place and identifier."""
    waiting: list[tuple[Json, str, str]] = [(document, "#", "")]
    while waiting:
        value, path, base = waiting.pop()
        if isinstance(value, list):
            waiting += [(one, f"{path}/{i}", base) for i, one in enumerate(value)]
        if not isinstance(value, dict):
            continue
        own = value.get("$id", value.get("id") if has_old_ids else None)
        has_name = any(isinstance(value.get(name), str) for name in _ANCHORS)
        if isinstance(own, str):
            try:
                named = urljoin(base, own)
            except ValueError:
                named = base
            yield value, path, named
            base = urldefrag(named)[0]
        elif has_name:
            yield value, path, base
        waiting += [
            (one, f"{path}/{escaped(name)}", base)
            for name, one in value.items()
            if name not in _DATA and isinstance(one, dict | list)
        ]
