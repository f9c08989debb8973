"""llama.cpp's own server beside ours: installed into an environment of its own, started, ended.

It comes in the wheel of xllamacpp. Wheels are built for any x86-64 machine with AVX2, while InferFlux builds
llama.cpp for the machine it runs on: where that has AVX-512, part of a difference is the compiler's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from inferflux.common.servers import LOOPBACK, dying_with_parent, free_port

ROOT = Path(__file__).resolve().parents[1]
_ENVIRONMENT = ROOT / ".venv-peers"
_REQUIREMENTS = ROOT / "requirements" / "peers.txt"
_START_LIMIT_S = 60.0


class PeerError(Exception):
    """The other server could not be installed or started; says why."""


def install() -> Path:
    """The interpreter of the peers' environment, made and filled if it is not yet.

    Raises:
        PeerError: pip could not install what requirements/peers.txt names.
    """
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
    python: Path, model: Path, *, threads: int, slots: int, cells: int, omp: str
) -> AsyncIterator[str]:
    """Run llama.cpp's server; gives its http://host:port once it answers.

    Args:
        python: what `install` returned.
        cells: KV cells all slots share.
        omp: how its threads wait for each other: passive, active, or default.

    Raises:
        PeerError: it ended, or did not answer in time.
    """
    port = free_port()
    command = [str(python), str(ROOT / "benchmarks" / "peer_server.py"), "--model-file", str(model)]
    numbers = {"--port": port, "--threads": threads, "--slots": slots, "--cells": cells}
    command += [word for name, value in numbers.items() for word in (name, str(value))]
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
        await _until_it_answers(process, port)
        yield f"http://{LOOPBACK}:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _until_it_answers(process: asyncio.subprocess.Process, port: int) -> None:
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while not await _is_healthy(port):
                if process.returncode is not None:
                    raise PeerError(f"llama.cpp's server ended with code {process.returncode}")
                await asyncio.sleep(0.1)
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
