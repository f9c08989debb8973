"""Source of a model, as an operator names it (pure).

| source | |
|---|---|
| `https://host/file.gguf` | a file of a web server |
| `file:/path`, `/path` | a file, or a folder of GGUFs, on the worker's machine |
| `hf:owner/repo[:quantization or file]` | a repository as Hugging Face serves it |
| `ollama:name[:tag]` | a model as Ollama's registry has it |
| `oci://host/name[:tag]` | the same, of another registry |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit, urlunsplit

from inferflux.common.contract.errors import InvalidArgument

MAX_SOURCE_BYTES = 4096
NO_PROJECTOR = "none"
# The best first: they are small beside a model, and lose quality sooner than it does.
_PROJECTOR_TYPES = ("F16", "BF16", "Q8_0", "F32")
_HF_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_OCI_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", re.IGNORECASE)
_OCI_TAG = re.compile(r"\w[\w.-]{0,127}")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib", ".mar")
# Characters of a path in a repository, and bytes of a name in a store: `.part.state.new` is put behind it.
_LONGEST_FILE = 1024
_LONGEST_STORED = 200
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


class SourceKind(StrEnum):
    WEB = "web"
    PATH = "path"
    HUGGING_FACE = "hf"
    OCI = "oci"


@dataclass(frozen=True, slots=True)
class Source:
    """A source that can be looked up.

    Attributes:
        place: URL, path, `owner/repo`, or name in a registry.
        which: file or quantization of a repository; tag of a registry.
        host: URL of the registry; empty: the one of the settings.
        shown: for manifests, logs and people: a URL without its query, which may hold a signature.
        name: what the model is called if it is not named.
    """

    kind: SourceKind
    place: str
    shown: str
    name: str
    which: str = ""
    host: str = ""


def parse_source(text: str) -> Source:
    """Raises:
    InvalidArgument: it names no source that is known, or what is not a GGUF; names `source`.
    """
    if not text:
        raise _bad("the source is missing")
    if len(text.encode()) > MAX_SOURCE_BYTES or not text.isprintable():
        raise _bad(f"a source has 1 to {MAX_SOURCE_BYTES} printable bytes")
    if text.startswith(("https://", "http://")):
        return _web(text)
    if text.startswith(("file:", "/")):
        return _path(text)
    if text.startswith("hf:"):
        return _hugging_face(text)
    if text.startswith(("ollama:", "oci://")):
        return _oci(text)
    kinds = "https://..., file:/path, hf:owner/repo, ollama:name or oci://host/name"
    raise _bad(f"{text[:200]!r} is no source; one is {kinds}")


def check_file_name(name: str) -> None:
    """Raises InvalidArgument for files that can hold code, and for those that have to be converted."""
    lower = name.lower()
    if lower.endswith(_PICKLES):
        raise _bad(f"{name} may hold a pickle, which can run code: only GGUF files are pulled")
    if lower.endswith(".safetensors"):
        raise _bad(f"{name} is no GGUF: `inferctl models convert` makes one of a folder of safetensors")


def shards_of(name: str) -> list[str]:
    """The names of all files of a model, of which one is given: itself, unless it is one of several shards.

    Raises:
        InvalidArgument: it is a shard that cannot be.
    """
    match = _SHARD.match(name)
    if match is None:
        return [name]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= 999:
        raise _bad(f"{name} is not a shard of any model")
    return [f"{match['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]


def is_file_name(name: str) -> bool:
    """True if a file that a server lists can be asked for, and be named in a message."""
    return name.isprintable() and 0 < len(name) <= _LONGEST_FILE


def stored_name(file_name: str) -> str:
    """Name of a file in a store: its own name, unless that is no GGUF's or too long."""
    if file_name.endswith(".gguf") and file_name != ".gguf" and len(file_name.encode()) <= _LONGEST_STORED:
        return file_name
    match = _SHARD.match(file_name)
    return f"model-{match['number']}-of-{match['count']}.gguf" if match is not None else "model.gguf"


def model_name_of(file_name: str) -> str:
    """Name of a model, from its file's name."""
    match = _SHARD.match(file_name)
    return match["stem"] if match is not None else file_name.removesuffix(".gguf")


def choose(files: list[str], which: str) -> list[str]:
    """The files of a repository that are meant: all shards of one model, the first one first.

    Args:
        which: a file, a quantization such as `Q4_K_M`, or empty.

    Raises:
        InvalidArgument: none is meant, or several are.
    """
    if which.lower().endswith(".gguf") or which in files:
        check_file_name(which)
        return _all_there(files, which)
    usable = [f for f in files if f.lower().endswith(".gguf") and not _is_projector(f)]
    if not usable:
        for name in files:
            check_file_name(name)
        raise _bad("the repository has no GGUF file")
    firsts = sorted({str(PurePosixPath(f).parent / shards_of(PurePosixPath(f).name)[0]) for f in usable})
    asked = [which] if which else ["Q4_K_M", "Q8_0"]
    for quantization in asked:
        marked = [f for f in firsts if _has_mark(f, quantization)]
        if len(marked) == 1:
            return _all_there(files, marked[0])
    if not which and len(firsts) == 1:
        return _all_there(files, firsts[0])
    listed = ", ".join(firsts[:10])
    raise _bad(f"which file of the repository is meant? There are {listed}")


def choose_projector(files: list[str], model: str, which: str) -> str | None:
    """The file of a repository that encodes images or sounds for a model; None: none is there, or wanted.

    Args:
        model: a file of the model: projectors in its folder come first.
        which: a file, `none`, or empty.

    Raises:
        InvalidArgument: it is not there, or it is not clear which is meant; names `mmproj`.
    """
    if which == NO_PROJECTOR:
        return None
    if which:
        if which not in files or not which.lower().endswith(".gguf"):
            raise _bad_projector(f"there is no GGUF file {which[:200]!r} beside the model")
        return which
    there = sorted(filter(_is_projector, files))
    folder = PurePosixPath(model).parent
    found = [file for file in there if PurePosixPath(file).parent == folder] or there
    if len(found) <= 1:
        return found[0] if found else None
    for kind in _PROJECTOR_TYPES:
        marked = [file for file in found if _has_mark(file, kind)]
        if len(marked) == 1:
            return marked[0]
    listed = ", ".join(found[:10])
    raise _bad_projector(f"which projector is meant, or {NO_PROJECTOR!r}? There are {listed}")


def _is_projector(file: str) -> bool:
    """True if a file is a projector by its name, as llama.cpp's converter and publishers use it."""
    return file.lower().endswith(".gguf") and "mmproj" in file.lower()


def _bad_projector(message: str) -> InvalidArgument:
    return InvalidArgument(message, field="mmproj", reason="BAD_SOURCE")


def check_no_projector(which: str, source: Source) -> None:
    """Raises InvalidArgument where a source has no files beside the model, and one of them is asked for."""
    if which not in ("", NO_PROJECTOR):
        raise _bad_projector(f"no file beside {source.shown} is known: name a repository or a folder")


def _has_mark(file: str, mark: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(mark)}($|[-._/])", file, re.IGNORECASE) is not None


def _all_there(files: list[str], first: str) -> list[str]:
    path = PurePosixPath(first)
    wanted = [str(path.parent / name) for name in shards_of(path.name)]
    missing = [name for name in wanted if name not in files]
    if missing:
        raise _bad(f"there is no {missing[0]}")
    return wanted


def _check_url(url: str) -> None:
    """Raises ValueError for what no HTTP client of ours would ask; the client has the last word."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:
        raise ValueError("a URL begins with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("a URL here has no user, password or fragment")


def _web(text: str) -> Source:
    try:
        _check_url(text)
        parts = urlsplit(text)
    except ValueError as error:
        raise _bad(str(error)) from None
    file = unquote(parts.path.rpartition("/")[2])
    check_file_name(file)
    return Source(
        SourceKind.WEB, text, urlunsplit((*parts[:3], "", "")), model_name_of(file) or parts.hostname or ""
    )


def _path(text: str) -> Source:
    path = text.removeprefix("file:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path.startswith("/"):
        raise _bad("the path of a source must be absolute: it is read on the worker's machine")
    check_file_name(path)
    return Source(SourceKind.PATH, path, f"file:{path}", model_name_of(path.rstrip("/").rpartition("/")[2]))


def _hugging_face(text: str) -> Source:
    repository, _, which = text.removeprefix("hf:").removeprefix("//").partition(":")
    if _HF_REPOSITORY.fullmatch(repository) is None or ".." in repository:
        raise _bad(f"{repository!r} is no repository: hf:owner/repo[:quantization or file]")
    if which.startswith("/") or ".." in which.split("/"):
        raise _bad(f"{which!r} is no file of a repository")
    check_file_name(which)
    name = repository.partition("/")[2].removesuffix("-GGUF").removesuffix("-gguf")
    if which:
        is_file = which.lower().endswith(".gguf")
        name = model_name_of(which.rpartition("/")[2]) if is_file else f"{name}:{which}"
    return Source(SourceKind.HUGGING_FACE, repository, text, name, which=which)


def _oci(text: str) -> Source:
    host = ""
    rest = text.removeprefix("ollama:").removeprefix("//")
    if text.startswith("oci://"):
        authority, slash, rest = text.removeprefix("oci://").partition("/")
        host = f"https://{authority}"
        try:
            _check_url(host)
        except ValueError as error:
            raise _bad(str(error)) from None
        if not slash:
            raise _bad("oci://host/name[:tag]")
    name, _, tag = rest.partition(":")
    if _OCI_NAME.fullmatch(name) is None or (tag and _OCI_TAG.fullmatch(tag) is None):
        raise _bad(f"{rest!r} is no name[:tag] of a registry")
    called = name.removeprefix("library/") + (f":{tag}" if tag else "")
    place = name if host or "/" in name else f"library/{name}"
    return Source(SourceKind.OCI, place, text, called, which=tag or "latest", host=host)


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, field="source", reason="BAD_SOURCE")
