"""The ctypes module of llama-cpp-python, without the package around it.

`import llama_cpp` also imports its high-level API, numpy, Jinja and a disk cache: about 30 MB and a
Python log callback that prints. Only the ctypes declarations are wanted here, so the package is
entered as an empty one.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from inferflux.common.process.child.captured import ABORTED, one_line

# Read when the library is loaded: no stack traces, for which it would start a debugger where there is one.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

_GGML_LOG_LEVEL_WARN = 3
_GGML_LOG_LEVEL_ERROR = 4

log_errors: deque[tuple[int, str]] = deque(maxlen=20)
"""The latest warnings and errors llama.cpp logged, for error messages: their level and text."""

on_abort: list[Callable[[], None]] = []
"""Called when an assertion of llama.cpp fails, by the thread that it fails in, before the process ends."""

_keep_alive: list[Any] = []
_readers: list[Callable[[str], None]] = []


def _import_bindings() -> ModuleType:
    if "llama_cpp" not in sys.modules:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("llama-cpp-python is not installed")
        package = ModuleType("llama_cpp")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


def _capture_log(bindings: Any) -> None:
    @bindings.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _user_data: object) -> None:
        for read in _readers:
            read(text.decode("utf-8", "replace"))
        if level in (_GGML_LOG_LEVEL_WARN, _GGML_LOG_LEVEL_ERROR):
            log_errors.append((level, one_line(text.decode("utf-8", "replace"))))

    _keep_alive.append(on_log)
    bindings.llama_log_set(on_log, ctypes.c_void_p(0))


def capture_log_of(set_log: Any) -> None:
    """Have a library that logs beside llama.cpp log to `log_errors` as well.

    Args:
        set_log: its function that takes a log callback.
    """
    set_log(_keep_alive[0], ctypes.c_void_p(0))


def _name_aborts(bindings: Any) -> None:
    """Have a failed assertion say so in one line of stderr before it ends the process."""

    def tell(message: bytes) -> None:
        for listener in on_abort:
            listener()
        where_and_what = message.decode("utf-8", "replace").rpartition("/vendor/")[2]
        os.write(2, f"{ABORTED}{one_line(where_and_what)}\n".encode())

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(tell)
    _keep_alive.append(callback)
    set_callback = bindings._lib.ggml_set_abort_callback  # noqa: SLF001 - bound by nothing else
    set_callback.restype = ctypes.c_void_p
    set_callback(callback)


llama: Any = _import_bindings()
_capture_log(llama)
_name_aborts(llama)
llama.llama_backend_init()


def first_log_error(default: str) -> str:
    """The first error since `log_errors` was cleared: the cause, those after it being consequences. The first
    warning if there was no error."""
    errors = (text for level, text in log_errors if level == _GGML_LOG_LEVEL_ERROR)
    return next(errors, log_errors[0][1] if log_errors else default)


@contextmanager
def reading_log(read: Callable[[str], None]) -> Iterator[None]:
    """Within, `read` gets each line that llama.cpp logs, of every level."""
    _readers.append(read)
    try:
        yield
    finally:
        _readers.remove(read)
