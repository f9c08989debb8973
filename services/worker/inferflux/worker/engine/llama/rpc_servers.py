"""ggml's RPC servers, whose devices hold layers of a model on other machines.

ggml ends the process of a client whose server is away, speaks another protocol or has another client: it is
asked for a greeting first. It serves one client at a time. Others wait, for ever.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable

from inferflux.common.llama.native import llama

GREETING_LIMIT_S = 5.0
# Of ggml's protocol 7: a command, the size of what follows it, and what this client can do beyond TCP.
_HELLO = 14
_MAJOR = 7
_SIZE = struct.Struct("<Q")
_CAPABILITIES = bytes(24)
_ANSWER_BYTES = 28


class RpcServerError(Exception):
    """An RPC server cannot be used; names it and the cause."""


def check_server(endpoint: str, *, limit_s: float = GREETING_LIMIT_S) -> None:
    """See that an RPC server answers now, in the protocol of this llama.cpp.

    Args:
        endpoint: host:port.

    Raises:
        RpcServerError: it does not.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=limit_s) as connection:
            connection.settimeout(limit_s)
            connection.sendall(bytes([_HELLO]) + _SIZE.pack(len(_CAPABILITIES)) + _CAPABILITIES)
            answer = _receive(connection, _SIZE.size + _ANSWER_BYTES)
    except TimeoutError:
        raise RpcServerError(
            f"the RPC server {endpoint} does not answer within {limit_s:g} s: it serves one client at a "
            "time, and may have another"
        ) from None
    except OSError as error:
        why = error.strerror or str(error)
        raise RpcServerError(f"the RPC server {endpoint} cannot be reached: {why}") from None
    if len(answer) < _SIZE.size + 3 or _SIZE.unpack_from(answer)[0] != _ANSWER_BYTES:
        raise RpcServerError(f"what listens on {endpoint} is no RPC server of ggml's protocol {_MAJOR}")
    major, minor, patch = answer[_SIZE.size : _SIZE.size + 3]
    if major != _MAJOR:
        raise RpcServerError(
            f"the RPC server {endpoint} speaks protocol {major}.{minor}.{patch}, this llama.cpp {_MAJOR}: "
            "both must be of one version"
        )


def _receive(connection: socket.socket, n_bytes: int) -> bytes:
    """Receive until there are `n_bytes`, or the other end closes."""
    answer = b""
    while len(answer) < n_bytes and (part := connection.recv(n_bytes - len(answer))):
        answer += part
    return answer


def add_servers(endpoints: Iterable[str]) -> None:
    """Make the devices of these servers known to llama.cpp. To be called once, before a model is loaded.

    Raises:
        RpcServerError: one cannot be used.
    """
    add = llama._lib.ggml_backend_rpc_add_server  # noqa: SLF001 - bound by nothing else
    register = llama._lib.ggml_backend_register  # noqa: SLF001
    add.restype, add.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    register.restype, register.argtypes = None, [ctypes.c_void_p]
    for endpoint in endpoints:
        check_server(endpoint)
        registry = add(endpoint.encode())
        if not registry:
            raise RpcServerError(f"the RPC server {endpoint} has no device that could be used")
        register(registry)
