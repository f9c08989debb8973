"""The devices that llama.cpp finds in this process, by ggml's own account of them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from inferflux.common.llama.native import llama
from inferflux.common.process.machine.free_memory import free_bytes
from inferflux.v1 import device_pb2

RPC = "RPC"
# enum ggml_backend_dev_type
_KINDS = {
    0: device_pb2.DEVICE_KIND_CPU,
    1: device_pb2.DEVICE_KIND_GPU,
    2: device_pb2.DEVICE_KIND_INTEGRATED_GPU,
    3: device_pb2.DEVICE_KIND_ACCELERATOR,
}
_GPUS = frozenset({device_pb2.DEVICE_KIND_GPU, device_pb2.DEVICE_KIND_INTEGRATED_GPU})


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device of ggml.

    Attributes:
        backend: the part of ggml that drives it: CPU, CUDA, Metal, Vulkan, RPC.
        memory_free, memory_total: bytes when it was looked at; 0 where the device does not tell.
        handle: ggml_backend_dev_t.
        buffer_type: ggml_backend_buffer_type_t of its own memory.
        buffer_name: by which llama.cpp's log names that.
    """

    name: str
    description: str
    backend: str
    kind: device_pb2.DeviceKind.ValueType
    memory_free: int
    memory_total: int
    handle: int
    buffer_type: int
    buffer_name: str

    @property
    def is_gpu(self) -> bool:
        """True if llama.cpp puts layers there."""
        return self.kind in _GPUS

    @property
    def is_remote(self) -> bool:
        """True if it belongs to an RPC server: its description is host:port then."""
        return self.backend == RPC


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml, which llama_cpp does not bind."""
    function = getattr(llama._lib, name)  # noqa: SLF001
    function.restype, function.argtypes = result, list(arguments)
    return function


_count = _function("ggml_backend_dev_count", ctypes.c_size_t)
_get = _function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_name = _function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
_description = _function("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
_type = _function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
_size_pointer = ctypes.POINTER(ctypes.c_size_t)
_memory = _function("ggml_backend_dev_memory", None, ctypes.c_void_p, _size_pointer, _size_pointer)
_registry = _function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
_registry_name = _function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
_buffer_type = _function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
_buffer_name = _function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)


def find_devices() -> list[FoundDevice]:
    """Every device, in ggml's order. One of an RPC server is asked over the network, which ends this process
    where the server is gone."""
    return [_look_at(_get(i)) for i in range(_count())]


def _look_at(handle: int) -> FoundDevice:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _memory(handle, ctypes.byref(free), ctypes.byref(total))
    kind = _KINDS.get(_type(handle), device_pb2.DEVICE_KIND_UNSPECIFIED)
    if kind == device_pb2.DEVICE_KIND_CPU:  # ggml says the total for both
        free.value = min(free.value, free_bytes())
    registry, buffer_type = _registry(handle), _buffer_type(handle)
    backend = _text(_registry_name(registry)) if registry else ""
    return FoundDevice(
        name=_text(_name(handle)),
        description=_text(_description(handle)),
        # A server's registry is called RPC[host:port].
        backend=RPC if backend.startswith(RPC) else backend,
        kind=kind,
        memory_free=int(free.value),
        memory_total=int(total.value),
        handle=handle,
        buffer_type=buffer_type or 0,
        buffer_name=_text(_buffer_name(buffer_type)) if buffer_type else "",
    )


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace").strip()
