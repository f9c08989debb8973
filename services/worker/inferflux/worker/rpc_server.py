"""`python -m inferflux.worker.rpc_server`: lends this machine's devices to workers on other machines.

It is ggml's own RPC server, of the llama.cpp that is installed here: workers must have the same version. The
protocol knows no keys and no encryption, and trusts its clients: private networks only.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferflux.common.contract import address
from inferflux.common.process.child.parent_death import exit_with_parent
from inferflux.common.process.machine.cores import usable_cores

DEFAULT_LISTEN = "127.0.0.1:50061"
_WARNING = (
    "warning: {listen} can be reached from other machines. The protocol has no encryption and no keys, and "
    "its clients can read and write this process's memory: private networks only.\n"
)


class RpcServerOptionsError(Exception):
    """Error of options that cannot be; names the flag."""


@dataclass(frozen=True, slots=True)
class Options:
    """Attributes:
    listen: host:port.
    devices: by ggml's names; empty: all GPUs, or the CPU where there is none.
    threads: of the CPU.
    cache: folder in which tensors are kept, so that they are not sent again; empty: there is none.
    """

    listen: str = DEFAULT_LISTEN
    devices: tuple[str, ...] = ()
    threads: int = 0
    cache: str = ""


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Ends the process where the arguments cannot be read."""
    parser = argparse.ArgumentParser(prog="rpc-server", description=__doc__)
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument(
        "--device", action="append", default=[], help="may be repeated; default: all GPUs, else the CPU"
    )
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: all usable cores")
    parser.add_argument("--cache", default="", metavar="DIR", help="keep tensors here that were sent once")
    given = parser.parse_args(arguments)
    return Options(given.listen, tuple(given.device), given.threads, given.cache)


def is_loopback(host: str) -> bool:
    """True if only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_listen(listen: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        RpcServerOptionsError: it is no host:port that ggml takes, or it is taken.
    """
    host, _, port = listen.rpartition(":")
    if not address.is_address(listen) or not host or ":" in host or int(port) == 0:
        raise RpcServerOptionsError(f"--listen: {listen!r} is not host:port, with a name or an IPv4 address")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, int(port)))
    except OSError as error:
        raise RpcServerOptionsError(f"--listen: {listen}: {error.strerror or error}") from None
    return host, int(port)


def serve(options: Options) -> None:
    """Serve until the process is ended. One client at a time.

    Raises:
        RpcServerOptionsError: a flag asks for what cannot be.
    """
    host, _ = check_listen(options.listen)
    # llama.cpp is loaded here, not above: a bad flag is told at once.
    from inferflux.common.llama.native import llama

    from .engine.llama.devices import find_devices

    devices = find_devices()
    if options.devices:
        by_name = {device.name.lower(): device for device in devices}
        missing = [name for name in options.devices if name.lower() not in by_name]
        if missing:
            there = ", ".join(device.name for device in devices)
            raise RpcServerOptionsError(f"--device: there is no {missing[0]}: there are {there}")
        chosen = [by_name[name.lower()] for name in options.devices]
    else:
        chosen = [device for device in devices if device.is_gpu] or devices[:1]
    if not is_loopback(host):
        sys.stderr.write(_WARNING.format(listen=options.listen))
        sys.stderr.flush()
    if options.cache:
        Path(options.cache).mkdir(mode=0o700, parents=True, exist_ok=True)
    start = llama._lib.ggml_backend_rpc_start_server  # noqa: SLF001 - bound by nothing else
    start.restype = None
    start.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p),
    ]
    handles = (ctypes.c_void_p * len(chosen))(*(device.handle for device in chosen))
    # It never returns to Python, so that no handler of Python's would run.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    start(
        options.listen.encode(),
        options.cache.encode() or None,
        options.threads or usable_cores(),
        len(chosen),
        handles,
    )
    raise RpcServerOptionsError(f"--listen: {options.listen}: it cannot be listened on")


def main(arguments: Sequence[str] | None = None) -> int:
    """The process."""
    options = parse(arguments)
    if os.environ.get("INFERFLUX_EXIT_WITH_PARENT", "").lower() in ("1", "true"):
        exit_with_parent()
    try:
        serve(options)
    except RpcServerOptionsError as error:
        sys.stderr.write(f"rpc-server: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
