"""Build llama.cpp's own server once, from the source that llama-cpp-python vendors: `make peers`.

It is the version that requirements/llama.txt pins, compiled with the flags of the Makefile (CMAKE_ARGS): the
same engine as InferFlux's own. What comes out lies in ~/.cache/inferflux/peers, for every checkout. A build
that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rows.peers import ROOT, PeerError

PINS = ROOT / "requirements" / "llama.txt"
_PACKAGE = "llama-cpp-python"
# The server alone; its pages would be downloaded, or built with npm.
_SERVER_ALONE = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)


@dataclass(frozen=True, slots=True)
class Pin:
    """A package as a requirements file pins it.

    Attributes:
        lines: what the file says of it, hashes included.
    """

    version: str
    lines: str


def pin_of(package: str, requirements: str) -> Pin:
    """Where `requirements`, the text of a file of pip-compile, pins `package`.

    Raises:
        PeerError: it does not.
    """
    found = re.search(rf"^{re.escape(package)}==(\S+)( \\\n +--hash=\S+)*", requirements, re.MULTILINE)
    if found is None:
        raise PeerError(f"{package} is not pinned")
    return Pin(found[1], found[0] + "\n")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a version is built.

    Attributes:
        flags: the file that holds what the server was compiled with; written last.
    """

    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "src"

    @property
    def build(self) -> Path:
        return self.folder / "build"

    @property
    def server(self) -> Path:
        return self.build / "bin" / "llama-server"

    @property
    def flags(self) -> Path:
        return self.folder / "flags"

    def is_built(self, flags: str | None = None) -> bool:
        """Return whether the server is there, compiled with `flags` if any are given."""
        if not (self.flags.exists() and self.server.exists()):
            return False
        return flags is None or self.flags.read_text() == flags


def place_of(version: str, env: Mapping[str, str]) -> Place:
    """Where that version of llama-cpp-python's llama.cpp is built."""
    cache = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Place(Path(cache) / "inferflux" / "peers" / f"{_PACKAGE}-{version}")


def built_server() -> Path | None:
    """The server that `make peers` built of the pinned version; None if it did not."""
    place = place_of(pin_of(_PACKAGE, PINS.read_text()).version, os.environ)
    return place.server if place.is_built() else None


def source(env: Mapping[str, str]) -> Path:
    """The folder of llama.cpp as the pinned package has it; fetched where it is not there.

    Raises:
        PeerError: it cannot be fetched.
    """
    pin = pin_of(_PACKAGE, PINS.read_text())
    place = place_of(pin.version, env)
    if not place.source.exists():
        _fetch(place, pin)
    return place.source / "vendor" / "llama.cpp"


def build(place: Place, pin: Pin, flags: str) -> None:
    """Fetch the source, if it is not there, and compile the server.

    Args:
        flags: arguments of cmake, as a shell would take them.

    Raises:
        PeerError: something is missing, or a step failed.
    """
    if (cmake := shutil.which("cmake")) is None:
        raise PeerError("llama.cpp's server is built with cmake, which is not on PATH: pip install cmake")
    place.flags.unlink(missing_ok=True)
    if not place.source.exists():
        _fetch(place, pin)
    source = place.source / "vendor" / "llama.cpp"
    _run([cmake, "-S", str(source), "-B", str(place.build), *shlex.split(flags), *_SERVER_ALONE])
    _run([cmake, "--build", str(place.build), "--target", "llama-server"])
    place.flags.write_text(flags)


def _fetch(place: Place, pin: Pin) -> None:
    """Download the source of the pinned version, checked by its hash, and unpack it."""
    place.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.folder) as name:
        folder = Path(name)
        wanted = folder / "requirements.txt"
        wanted.write_text(pin.lines)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", _PACKAGE]
        _run([*pip, "--require-hashes", "-r", str(wanted), "-d", str(folder)])
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        unpacked.rename(place.source)


def _run(command: Sequence[str]) -> None:
    if subprocess.run(command, check=False).returncode != 0:
        raise PeerError(f"failed: {shlex.join(command)}")


def main() -> int:
    """Build unless it was done; returns the exit code."""
    if "CMAKE_ARGS" not in os.environ:
        print("CMAKE_ARGS is not set: run `make peers`", file=sys.stderr)
        return 1
    flags = os.environ["CMAKE_ARGS"]
    pin = pin_of(_PACKAGE, PINS.read_text())
    place = place_of(pin.version, os.environ)
    try:
        if not place.is_built(flags):
            print(">>> llama.cpp's server is built for this machine now: this takes some minutes, once.")
            build(place, pin, flags)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print(place.server)
    return 0


if __name__ == "__main__":
    sys.exit(main())
