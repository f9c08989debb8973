"""A scheduler's world with hosts of models: they load them and unload them as they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.scheduler_world import World, make_request

from inferflux.common.contract.errors import InferFluxError, ResourceExhausted
from inferflux.scheduler.core.types import actions
from inferflux.scheduler.core.types.jobs import RequestKey
from inferflux.scheduler.core.types.limits import Limits
from inferflux.v1 import host_pb2, model_pb2, scheduler_pb2

REGISTERED = model_pb2.MODEL_STATE_REGISTERED
LOADING = model_pb2.MODEL_STATE_LOADING
READY = model_pb2.MODEL_STATE_READY
FAILED = model_pb2.MODEL_STATE_FAILED
UNLOADING = model_pb2.MODEL_STATE_UNLOADING
HELD = (LOADING, READY, UNLOADING)


@dataclass(slots=True)
class SimModel:
    """A model of a host.

    Attributes:
        load_s: how long loading it takes.
        failure: why it cannot be loaded; "" if it can.
        digest: of its file.
    """

    name: str
    needs: int = 1
    load_s: int = 2
    is_pinned: bool = False
    failure: str = ""
    digest: str = ""
    state: model_pb2.ModelState.ValueType = REGISTERED
    since: int = 0
    worker_id: str = ""
    loads: int = 0


class SimHost:
    """A host in the test's world. Its models are loaded as workers of the world."""

    def __init__(
        self, world: HostWorld, host_id: str, models: list[SimModel], *, memory: int, places: int
    ) -> None:
        self.world = world
        self.host_id = host_id
        self.models = {model.name: model for model in models}
        self.memory = memory
        self.places = places
        self.idle_s = 0.0
        self.zone = ""
        # A model that is never unloaded once that has begun.
        self.keeps = ""
        self._seconds = 0

    def held(self) -> list[SimModel]:
        return [model for model in self.models.values() if model.state in HELD]

    def obey(self, action: actions.CommandHost) -> host_pb2.HostedModel | InferFluxError:
        model = self.models[action.model]
        if action.kind == "unload":
            if model.state in (LOADING, READY):
                self._set(model, UNLOADING)
                self._drain(model)
            return self._message(model)
        if model.state in (REGISTERED, FAILED):
            taken = sum(other.needs for other in self.held())
            if len(self.held()) >= self.places or taken + model.needs > self.memory:
                return ResourceExhausted("there is no room", reason="NO_MEMORY_FOR_MODEL")
            self._set(model, LOADING)
            model.loads += 1
        return self._message(model)

    def step(self) -> None:
        """A second passes."""
        self._seconds += 1
        for model in self.models.values():
            if model.state == LOADING and self._seconds - model.since >= model.load_s:
                if model.failure:
                    self._set(model, FAILED)
                else:
                    model.worker_id = f"{self.host_id}--{model.name}"
                    self.world.add_worker(model.worker_id, model=model.name, digest=model.digest)
                    self._set(model, READY)
            elif model.state == UNLOADING and model.name != self.keeps:
                worker = self.world.workers.get(model.worker_id)
                if worker is None or not worker.residents:
                    self._leave(model)
                    self._set(model, REGISTERED)

    def report(self) -> None:
        status = host_pb2.HostStatus(
            host_id=self.host_id,
            incarnation="i1",
            zone=self.zone,
            models_max=self.places,
            memory_bytes=self.memory,
            idle_s=self.idle_s,
            models=[self._message(model) for model in self.models.values()],
        )
        self.world.tell(lambda: self.world.core.on_host(status, self.world.now))

    def _message(self, model: SimModel) -> host_pb2.HostedModel:
        return host_pb2.HostedModel(
            card=model_pb2.ModelCard(name=model.name, digest=model.digest, context_length=64, size_bytes=1),
            state=model.state,
            reason=model.failure if model.state == FAILED else "",
            since_unix_ms=model.since * 1000,
            worker_id=model.worker_id,
            needs_bytes=model.needs,
            is_pinned=model.is_pinned,
            load_s=model.load_s,
        )

    def _set(self, model: SimModel, state: model_pb2.ModelState.ValueType) -> None:
        model.state, model.since = state, self._seconds

    def _drain(self, model: SimModel) -> None:
        worker = self.world.workers.get(model.worker_id)
        if worker is not None:
            worker.state = scheduler_pb2.WORKER_STATE_DRAINING
            worker.beat()

    def _leave(self, model: SimModel) -> None:
        worker = self.world.workers.pop(model.worker_id, None)
        if worker is not None:
            event = worker.event()
            event.worker_left.SetInParent()
            worker.tell(event)
        model.worker_id = ""


class HostWorld(World):
    """A world whose workers are models of hosts."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        super().__init__(limits, **options)
        self.hosts: dict[str, SimHost] = {}
        # What hosts were told.
        self.told: list[actions.CommandHost] = []
        self._asked = 0

    def add_host(
        self,
        models: list[SimModel],
        *,
        host_id: str = "h",
        memory: int = 100,
        places: int = 3,
        zone: str = "",
    ) -> SimHost:
        host = self.hosts[host_id] = SimHost(self, host_id, models, memory=memory, places=places)
        host.zone = zone
        host.report()
        self.settle()
        return host

    def ask(self, model: str, name: str = "", **options: Any) -> RequestKey:
        """Submit a request for a model."""
        self._asked += 1
        key = self.submit(make_request(name or f"r{self._asked}", model=model, at=self.now, **options))
        self.settle()
        return key

    def second(self) -> None:
        """A second passes for hosts, workers and the scheduler."""
        for host in self.hosts.values():
            host.step()
            host.report()
        for worker in list(self.workers.values()):
            worker.step()
            worker.beat()
        self.settle()
        for _ in range(4):
            self.pass_time(0.25)
            self.settle()

    def until_quiet(self, seconds: int) -> int:
        """Let time pass until nothing is to be done; returns the seconds it took."""
        for passed in range(seconds):
            if not (self.jobs or self.core.jobs):
                return passed
            self.second()
        raise AssertionError(f"not done in {seconds} s: {list(self.core.jobs)}")

    def _perform(self, action: actions.Action) -> None:
        if not isinstance(action, actions.CommandHost):
            super()._perform(action)
            return
        self.told.append(action)
        host = self.hosts[action.host_id]

        def answer() -> list[actions.Action]:
            said = host.obey(action)
            return self.core.on_host_answer(action.host_id, action.model, said, self.now)

        self.tell(answer)
