"""Adapters of the loaded model: loaded and freed between steps, while sequences of others go on.

llama.cpp lists a model's adapters without a lock, so they are loaded and freed by the thread that computes.
What takes long is done before, in another thread: the file is read once, which leaves it in the page cache,
and has to be the one that was checked.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from inferflux.v1 import engine_pb2
from inferflux.worker.files.adapter_digest import digest_of


class AdapterError(Exception):
    """The file cannot be applied to the model; says why."""


class AdapterBackend(Protocol):
    """Interface of the backend that loads and frees adapters; `Backend` has it."""

    def load_adapter(self, adapter: engine_pb2.EngineAdapter) -> None: ...
    def free_adapter(self, digest: str) -> None: ...


class Adapters:
    """Adapters by digest: those that are loaded, being loaded, and to be freed once no sequence has them."""

    def __init__(self, backend: AdapterBackend) -> None:
        self._backend = backend
        self._loaded: set[str] = set()
        self._retired: set[str] = set()
        self._reading: dict[str, tuple[engine_pb2.EngineAdapter, Future[str]]] = {}
        self._reader: ThreadPoolExecutor | None = None

    @property
    def is_busy(self) -> bool:
        """True if one is being loaded."""
        return bool(self._reading)

    @property
    def has_retired(self) -> bool:
        """True if one is to be freed."""
        return bool(self._retired)

    def has(self, digest: str) -> bool:
        """True if it can be applied now."""
        return digest in self._loaded

    def is_coming(self, digest: str) -> bool:
        """True if it is being loaded."""
        return digest in self._reading

    def load_now(self, adapter: engine_pb2.EngineAdapter) -> engine_pb2.EngineAdapterLoaded:
        """Load one before anything is served."""
        try:
            return self._finish(adapter, digest_of(Path(adapter.path), adapter.scale))
        except OSError as error:
            return _failed(adapter, f"{adapter.path}: {error.strerror}")

    def begin(self, adapter: engine_pb2.EngineAdapter) -> None:
        """Begin to load one; `poll` tells when it is."""
        self._retired.discard(adapter.digest)
        if adapter.digest in self._reading:
            return
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapter")
        reading = self._reader.submit(digest_of, Path(adapter.path), adapter.scale)
        self._reading[adapter.digest] = adapter, reading

    def retire(self, digest: str) -> None:
        """Free one as soon as no sequence has it."""
        self._reading.pop(digest, None)
        if digest in self._loaded:
            self._retired.add(digest)

    def poll(self) -> list[engine_pb2.EngineAdapterLoaded]:
        """Return the adapters whose loading has ended since the last call, loaded or failed."""
        done = [digest for digest, (_, reading) in self._reading.items() if reading.done()]
        return [self._settle(*self._reading.pop(digest)) for digest in done]

    def free_unused(self, used: Collection[str]) -> None:
        """Free retired ones that none of the sequences has.

        Args:
            used: digests of the adapters of all sequences.
        """
        for digest in self._retired.difference(used):
            self._retired.discard(digest)
            self._loaded.discard(digest)
            self._backend.free_adapter(digest)

    def close(self) -> None:
        """Begin no more."""
        if self._reader is not None:
            self._reader.shutdown(wait=False, cancel_futures=True)

    def _settle(
        self, adapter: engine_pb2.EngineAdapter, reading: Future[str]
    ) -> engine_pb2.EngineAdapterLoaded:
        try:
            return self._finish(adapter, reading.result())
        except OSError as error:
            return _failed(adapter, f"{adapter.path}: {error.strerror}")

    def _finish(self, adapter: engine_pb2.EngineAdapter, found: str) -> engine_pb2.EngineAdapterLoaded:
        if found != adapter.digest:
            return _failed(adapter, f"{adapter.path}: the file is not the one that was checked")
        if adapter.digest not in self._loaded:
            try:
                self._backend.load_adapter(adapter)
            except AdapterError as error:
                return _failed(adapter, str(error))
            self._loaded.add(adapter.digest)
        return engine_pb2.EngineAdapterLoaded(digest=adapter.digest)


def _failed(adapter: engine_pb2.EngineAdapter, why: str) -> engine_pb2.EngineAdapterLoaded:
    return engine_pb2.EngineAdapterLoaded(digest=adapter.digest, error=why)
