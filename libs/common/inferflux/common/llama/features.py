"""`python -m inferflux.common.llama.features`: what llama.cpp was built with, as a line of JSON.

In a process of its own: a build for another CPU ends the process that loads it.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import sys
from typing import Any

from .native import llama


def features() -> dict[str, Any]:
    """Version of the package, what llama.cpp says of its build, and how many devices each backend finds."""
    return {
        "version": importlib.metadata.version("llama-cpp-python"),
        "system_info": llama.llama_print_system_info().decode("utf-8", "replace"),
        "backends": _backends(),
    }


def _backends() -> dict[str, int]:
    def function(name: str, result: Any, *arguments: Any) -> Any:
        found = getattr(llama._lib, name)  # noqa: SLF001 - bound by nothing else
        found.restype, found.argtypes = result, list(arguments)
        return found

    count = function("ggml_backend_reg_count", ctypes.c_size_t)
    get = function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    name_of = function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
    devices_of = function("ggml_backend_reg_dev_count", ctypes.c_size_t, ctypes.c_void_p)
    registries = [get(index) for index in range(count())]
    return {name_of(one).decode("utf-8", "replace"): int(devices_of(one)) for one in registries}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(features()) + "\n")
