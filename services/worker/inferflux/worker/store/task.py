"""Task of a child process on a store, and its reports: JSON over its pipes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .transfer import Retries


@dataclass(frozen=True, slots=True)
class Task:
    """Task on a store.

    Attributes:
        name: of the model; for `verify`, empty: all of the store.
        gone: models to verify that the store should have and has not.
        source: as the operator wrote it; `sha256` that its file must have, or empty.
        mmproj: see `choose_projector`.
        quota: bytes of the store; 0: none.
        networks, ca: as in `HttpClientSettings`.
        hf_token: a secret, which a pipe carries.
    """

    do: Literal["pull", "verify"]
    store: str
    name: str
    source: str = ""
    sha256: str = ""
    mmproj: str = ""
    gone: tuple[str, ...] = ()
    quota: int = 0
    networks: str = ""
    ca: str = ""
    hugging_face: str = ""
    ollama: str = ""
    hf_token: str = field(default="", repr=False)
    retries: Retries = field(default_factory=Retries)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        said: dict[str, Any] = json.loads(text)
        return cls(**(said | {"retries": Retries(**said["retries"]), "gone": tuple(said["gone"])}))


@dataclass(frozen=True, slots=True)
class Report:
    """A line that a child says: how far it is, and at last how it ended.

    Attributes:
        done, total: bytes; 0: not known.
        has_ended: this is the last one.
        name, paths: of a model that is one of the store: its file, and its projector if it has one.
        differing: models of which a file differs.
        code: a google.rpc.Code; 0: nothing failed.
    """

    done: int = 0
    total: int = 0
    doing: str = ""
    has_ended: bool = False
    digest: str = ""
    name: str = ""
    paths: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    code: int = 0
    reason: str = ""
    field: str = ""
    message: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> Report:
        said: dict[str, Any] = json.loads(line)
        return cls(**(said | {key: tuple(said[key]) for key in ("paths", "differing")}))
