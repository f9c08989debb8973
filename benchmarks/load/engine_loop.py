"""The worker's engine in this process, without a service around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferflux.v1 import engine_pb2, tokens_pb2, worker_pb2
from inferflux.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from inferflux.worker.engine.llama.native import Backend
    from inferflux.worker.engine.step.core import Engine

SLOTS = 9


def item_of(index: int, prompt: list[int], max_tokens: int) -> worker_pb2.BatchItem:
    """A greedy request that goes on past the model's own end."""
    item = worker_pb2.BatchItem()
    request = item.request
    request.tenant, request.request_id, request.epoch = "bench", f"r{index}", 1
    request.prompt_token_ids.extend(prompt)
    request.params.max_tokens = max_tokens
    request.params.ignore_eos = True
    return item


@dataclass(slots=True)
class EngineLoop:
    """An engine of an empty backend, and what it has answered by request."""

    backend: Backend
    answers: dict[str, list[int]] = field(default_factory=dict)
    engine: Engine = field(init=False)
    _free: list[int] = field(default_factory=lambda: list(range(SLOTS)))
    # By key, of those that run or were evicted.
    _slots: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Imported here: OpenMP reads the environment when llama.cpp's libraries are loaded.
        from inferflux.worker.engine.step.core import Engine
        from inferflux.worker.engine.tiers.tiers import Tiers

        for seq_id in range(self.backend.sequences):  # what an earlier engine has left there
            self.backend.forget(seq_id)
            self.backend.forget_prefill(seq_id)
        names = ("max_itl_factor", "step_limit_s")
        defaults = {name: WorkerSettings.model_fields[name].default for name in names}
        self.engine = Engine(self.backend, worker_id="bench", tiers=Tiers.off(), **defaults)

    def start(self, item: worker_pb2.BatchItem, *, deterministic: bool = False) -> str:
        """Take a request up; returns its name."""
        item.slot = self._free.pop()
        if deterministic:
            item.request.params.deterministic = True
        name = item.request.request_id
        self.answers[name] = []
        self._slots[_key(name)] = item.slot
        self.engine.start(item)
        return name

    def run(self, until: Callable[[], bool]) -> None:
        """Step until that holds. Requests that were evicted go on.

        Raises:
            RuntimeError: a request failed.
        """
        while not until():
            for sequence in self.engine.residents.values():
                if not sequence.is_running and sequence.key in self._slots:
                    self._resume(sequence.key)
            self.engine.step()
            report = self.engine.take_report()
            for emission in report.step.emissions if report else ():
                chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
                self.answers[chunk.request_id].extend(chunk.token_ids)
                if chunk.HasField("failed"):
                    raise RuntimeError(chunk.failed.message)
            for ended in report.step.finished if report else ():
                self._free.append(self._slots.pop(ended.key))

    def run_to(self, names: Iterable[str], tokens: int) -> None:
        """Step until each of these requests has this many tokens."""
        names = list(names)
        self.run(lambda: all(len(self.answers[name]) >= tokens for name in names))

    def run_to_end(self, names: Iterable[str]) -> None:
        """Step until these requests have ended."""
        keys = set(map(_key, names))
        self.run(lambda: keys.isdisjoint(self._slots))

    def run_all(self) -> None:
        """Step until all requests but parked ones have ended."""
        self.run(lambda: not self._slots)

    def evict(self, name: str) -> None:
        """Take a request's cells, as for one that is more urgent."""
        self.engine._planning.evict(self.engine.residents[_key(name)])  # noqa: SLF001

    def park(self, name: str) -> None:
        """Take a request's slot, as for one that waited. Its cells stay."""
        self.engine.deschedule(engine_pb2.EngineDeschedule(key=_key(name), epoch=1, run=1))
        self._free.append(self._slots.pop(_key(name)))

    def take_back(self, name: str) -> None:
        self._slots[_key(name)] = self._free.pop()
        self._resume(_key(name))

    def cancel(self, name: str) -> None:
        self.engine.cancel(_key(name), is_silent=True)
        self._free.append(self._slots.pop(_key(name)))

    def _resume(self, key: str) -> None:
        self.engine.resume(engine_pb2.EngineResume(key=key, epoch=1, slot=self._slots[key], run=1))


def _key(name: str) -> str:
    return f"bench.{name}"
