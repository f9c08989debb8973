"""Which of llama.cpp's servers is taken, and how it is built."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.rows import peers
from benchmarks.rows.peer_build import PINS, Place, pin_of, place_of
from benchmarks.rows.peers import PeerError, Served

_TEXT = """\
diskcache==5.6.3 \\
    --hash=sha256:aa
    # via llama-cpp-python
llama-cpp-python==0.3.36 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
    # via -r llama.in
"""


def test_a_pin_is_the_version_with_its_hashes() -> None:
    pin = pin_of("llama-cpp-python", _TEXT)
    assert pin.version == "0.3.36"
    assert pin.lines == "llama-cpp-python==0.3.36 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"


def test_a_package_that_is_not_pinned_is_refused_by_name() -> None:
    with pytest.raises(PeerError, match="numpy is not pinned"):
        pin_of("numpy", _TEXT)


def test_the_requirements_pin_llama_cpp_python_with_a_hash() -> None:
    assert "--hash=sha256:" in pin_of("llama-cpp-python", PINS.read_text()).lines


def test_a_version_is_built_below_the_cache_folder() -> None:
    place = place_of("1.2", {"XDG_CACHE_HOME": "/cache"})
    assert place.folder == Path("/cache/inferflux/peers/llama-cpp-python-1.2")


def test_a_server_counts_as_built_when_its_flags_were_written_last(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.server.parent.mkdir(parents=True)
    place.server.touch()
    assert not place.is_built()  # an interrupted build
    place.flags.write_text("-DGGML_NATIVE=ON")
    assert place.is_built()
    assert place.is_built("-DGGML_NATIVE=ON")
    assert not place.is_built("-DGGML_NATIVE=OFF")


def test_the_server_built_here_is_preferred_and_named(tmp_path: Path) -> None:
    peer = peers.find(tmp_path / "llama-server")
    assert peer.name == "llama-server built here"
    command = peer.command(Served(Path("m.gguf"), port=80, threads=2, slots=16, cells=16384))
    assert command[0] == str(tmp_path / "llama-server")
    options = dict(itertools.pairwise(command))
    assert options["--model"] == "m.gguf"
    assert (options["--port"], options["--threads"], options["--threads-batch"]) == ("80", "2", "2")
    assert (options["--parallel"], options["--ctx-size"]) == ("16", "16384")
    assert "--no-cache-prompt" in command
