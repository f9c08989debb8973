"""Network namespaces and their TAP devices (Linux, root). One lives as long as its descriptor is open."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_TUN = Path("/dev/net/tun")
_OWN = Path("/proc/thread-self/ns/net")
DEVICE = "eth0"
SUBNET = "10.77.0"
_TOOLS = ("ip", "nsenter")
_IP_LIMIT_S = 10.0

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """What this machine lacks for namespaces with TAP devices; empty if nothing."""
    if not _OWN.exists():
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "making network namespaces takes root"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"there is no {_TUN}"
    if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"there is no {' and no '.join(lacking)}"
    try:
        home = os.open(_OWN, os.O_RDONLY)
        try:
            made, tap = make()
            try:
                configure(made, 1, {1: "", 2: ""})
            finally:
                os.close(made)
                os.close(tap)
        finally:
            enter(home)
            os.close(home)
    except OSError as error:
        return f"no namespace can be made here: {error}"
    return ""


def address_of(port: int) -> str:
    """The address of the host at a port of the switch, from 1 on."""
    return f"{SUBNET}.{port}"


def mac_of(port: int) -> bytes:
    """Its MAC address. The last byte alone tells hosts apart."""
    return bytes((2, 0, 0, 0, 0, port))


def make() -> tuple[int, int]:
    """A new namespace, which this thread is in from now on, and its TAP device: a descriptor of each.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
    namespace = os.open(_OWN, os.O_RDONLY)
    tap = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TAP | _IFF_NO_PI))
    return namespace, tap


def enter(namespace: int) -> None:
    """Have this thread, and all that it starts, in a namespace.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns: " + os.strerror(ctypes.get_errno()))


def inside(namespace: int) -> list[str]:
    """What a command is begun with, to run there. The process keeps its id."""
    return [shutil.which("nsenter") or "nsenter", f"--net=/proc/{os.getpid()}/fd/{namespace}", "--"]


def configure(namespace: int, port: int, ports: Mapping[int, str]) -> None:
    """Give the host at `port` its addresses. No address has to be asked for: all neighbours are told.

    Args:
        ports: of all hosts.

    Raises:
        OSError: `ip` fails, or is not done in time; says with what.
    """
    mac = mac_of(port).hex(":")
    lines = [
        "link set lo up",
        f"link set {DEVICE} addrgenmode none address {mac}",
        f"address add {address_of(port)}/24 dev {DEVICE}",
        f"link set {DEVICE} up",
        *(
            f"neighbor replace {address_of(other)} lladdr {mac_of(other).hex(':')} dev {DEVICE} nud permanent"
            for other in ports
            if other != port
        ),
    ]
    command = [*inside(namespace), "ip", "-batch", "-"]
    try:
        done = subprocess.run(
            command, input="\n".join(lines).encode(), capture_output=True, check=False, timeout=_IP_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"ip was not done within {_IP_LIMIT_S:g} s") from None
    if done.returncode:
        raise OSError(f"ip: {done.stderr.decode(errors='replace').strip()}")
