"""llama.cpp's own server beside ours: found, started, ended.

There are two. `make peers` builds it from the source that llama-cpp-python vendors, with the flags of
InferFlux's own llama.cpp (`peer_build`). Where that was not done, it comes in the wheel of xllamacpp, into an
environment of its own. Wheels are built for any x86-64 machine with AVX2: where this one has AVX-512, part of
a difference is the compiler's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from inferflux.cli.stack.servers import LOOPBACK, dying_with_parent, free_port

ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = ROOT / ".venv-peers"
_REQUIREMENTS = ROOT / "requirements" / "peers.txt"
_START_LIMIT_S = 60.0


class PeerError(Exception):
    """The other server could not be built, installed or started; says why."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model that a server serves, and its sizes.

    Attributes:
        cells: KV cells all slots share.
        keeps_prompts: whether what is computed of prompts is kept for others, as the server does by default.
        has_flash_attention: whether attention is one fused step.
    """

    model: Path
    port: int
    threads: int
    slots: int
    cells: int
    keeps_prompts: bool = False
    has_flash_attention: bool = True


@dataclass(frozen=True, slots=True)
class Peer:
    """llama.cpp's own server.

    Attributes:
        name: what is said beside a figure that was taken against it.
        command: starts it.
    """

    name: str
    command: Callable[[Served], list[str]]


def find(built: Path | None) -> Peer:
    """The server built here, otherwise the wheel's, installed if it is not yet.

    Args:
        built: the llama-server that `make peers` left; None if it has not.

    Raises:
        PeerError: pip could not install what requirements/peers.txt names.
    """
    if built is not None:
        return Peer("llama-server built here", lambda served: _built_command(built, served))
    python = _install()
    return Peer("xllamacpp's wheel, AVX2", lambda served: _wheel_command(python, served))


def _built_command(server: Path, served: Served) -> list[str]:
    """Return what peer_server.py sets, as options of llama-server."""
    sizes = {"--ctx-size": served.cells, "--batch-size": 2048, "--ubatch-size": 512}
    threads = {"--threads": served.threads, "--threads-batch": served.threads}
    # Otherwise every prompt is computed: no reuse within a slot, none from another slot, none in host memory.
    computed = {"--slot-prompt-similarity": 0.0, "--cache-ram": 0, "--ctx-checkpoints": 0}
    reuse = {} if served.keeps_prompts else computed
    options = {
        "--model": served.model,
        "--host": LOOPBACK,
        "--port": served.port,
        "--parallel": served.slots,
        **sizes,
        **threads,
        **reuse,
        "--flash-attn": "on" if served.has_flash_attention else "off",
        "--fit": "off",
        "--verbosity": 1,
    }
    no_reuse = () if served.keeps_prompts else ("--no-cache-prompt", "--no-cache-idle-slots")
    switches = ("--kv-unified", *no_reuse, "--no-ui", "--offline")
    return [str(server), *(str(word) for option in options.items() for word in option), *switches]


def _wheel_command(python: Path, served: Served) -> list[str]:
    options = {
        "--model-file": served.model,
        "--port": served.port,
        "--threads": served.threads,
        "--slots": served.slots,
        "--cells": served.cells,
    }
    script = Path(__file__).with_name("peer_server.py")
    words = [str(word) for option in options.items() for word in option]
    return [str(python), str(script), *words, *(() if served.has_flash_attention else ("--no-flash-attn",))]


def _install() -> Path:
    """The interpreter of the peers' environment, made and filled if it is not yet."""
    python = _ENVIRONMENT / "bin" / "python"
    stamp = _ENVIRONMENT / ".installed"
    wanted = _REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    commands = [
        [sys.executable, "-m", "venv", str(_ENVIRONMENT)],
        [*pip, "--only-binary", ":all:", "--require-hashes", "-r", str(_REQUIREMENTS)],
    ]
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise PeerError(f"{' '.join(command)}: {result.stderr.strip()}")
    stamp.write_text(wanted)
    return python


@asynccontextmanager
async def llama_server(
    peer: Peer,
    model: Path,
    *,
    threads: int,
    slots: int,
    cells: int,
    omp: str,
    keeps_prompts: bool = False,
    has_flash_attention: bool = True,
    look_every_s: float = 0.1,
) -> AsyncIterator[str]:
    """Run llama.cpp's server; gives its http://host:port once it answers.

    Args:
        peer: what `find` returned.
        cells: KV cells all slots share.
        keeps_prompts, has_flash_attention: see `Served`.
        omp: how its threads wait for each other: passive, active, or default.
        look_every_s: how often it is asked whether it answers.

    Raises:
        PeerError: it ended, or did not answer in time.
    """
    port = free_port()
    command = peer.command(Served(model, port, threads, slots, cells, keeps_prompts, has_flash_attention))
    env = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if omp != "default":
        env["OMP_WAIT_POLICY"] = omp
    process = await asyncio.create_subprocess_exec(
        *dying_with_parent(command),
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        await _until_it_answers(process, port, look_every_s)
        yield f"http://{LOOPBACK}:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until_it_answers(process: asyncio.subprocess.Process, port: int, look_every_s: float) -> None:
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while not await _is_healthy(port):
                if process.returncode is not None:
                    raise PeerError(f"llama.cpp's server ended with code {process.returncode}")
                await asyncio.sleep(look_every_s)
    except TimeoutError:
        raise PeerError(f"llama.cpp's server did not answer within {_START_LIMIT_S:g} s") from None


async def _is_healthy(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read(64)
        writer.close()
    except OSError:
        return False
    return b" 200 " in answer
