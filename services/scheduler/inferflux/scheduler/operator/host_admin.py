"""Operators' requests about models: to load, unload or forget one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from inferflux.common.contract.errors import InvalidArgument, NotFound
from inferflux.common.contract.messages.hosts import as_model
from inferflux.common.contract.partitions import OTHER_PARTITION, WHOLE, Partition
from inferflux.common.contract.requests.adapters import adapter_of
from inferflux.common.process import logs
from inferflux.scheduler.core.workers.hosts import HostTable, HostView
from inferflux.v1 import host_pb2, model_pb2

log = logs.get("scheduler.hosts")

AskHost = Callable[[str, host_pb2.HostCommand], Awaitable[host_pb2.HostedModel]]
"""Has a host obey; raises InferFluxErrors."""
AskStore = Callable[[str, host_pb2.HostCommand], Awaitable[model_pb2.StoreJob]]
"""Has a host do something with its store; raises InferFluxErrors."""


class ModelAdministration:
    """Has hosts load and unload models.

    Args:
        term: of the scheduler's lease.
        partition: of the models, which this scheduler has.
    """

    def __init__(
        self,
        hosts: HostTable,
        term: int,
        ask: AskHost,
        *,
        ask_store: AskStore,
        partition: Partition = WHOLE,
    ) -> None:
        self._hosts = hosts
        self._partition = partition
        self._term = term
        self._ask = ask
        self._ask_store = ask_store

    async def load(self, request: model_pb2.LoadModelRequest) -> model_pb2.Model:
        """Begin to load a model, which becomes known first if a file is named.

        Raises:
            NotFound: no host knows it, or there is no such host.
            InvalidArgument: `path` without `host_id`, where there are several hosts.
            InferFluxError: as the host says why not.
        """
        self._check_own(request.name)
        host = self._host_for(request)
        name = request.name
        if request.path:
            register = host_pb2.RegisterModelFile(
                path=request.path,
                name=name,
                is_pinned=request.is_pinned,
                aliases=request.aliases,
                role=request.role,
                mmproj_path=request.mmproj_path,
                chat_template_path=request.chat_template_path,
                deterministic=request.deterministic if request.HasField("deterministic") else None,
            )
            command = self._new_command()
            command.register.CopyFrom(register)
            name = (await self._ask(host.host_id, command)).card.name
        load = self._new_command()
        load.load.name = name
        model = await self._ask(host.host_id, load)
        log.info("an operator has a model loaded", model=name, host_id=host.host_id)
        return self._seen_on(name, {host.host_id: model})

    async def unload(self, request: model_pb2.UnloadModelRequest) -> model_pb2.Model:
        """Begin to unload a model, on one host or on all that have it; or forget it.

        Raises:
            NotFound: no host knows it.
            InferFluxError: as a host says why not.
        """
        self._check_own(request.name)
        answers: dict[str, host_pb2.HostedModel] = {}
        for host in self._having(request.name, request.host_id):
            command = self._new_command()
            if request.forget:
                command.forget.name = request.name
            else:
                command.unload.name = request.name
            answers[host.host_id] = await self._ask(host.host_id, command)
        log.info("an operator has a model unloaded", model=request.name, forget=request.forget)
        return self._seen_on(request.name, answers)

    async def add_adapter(self, request: model_pb2.AddAdapterRequest) -> model_pb2.Model:
        """Make a file an adapter of a model, on one host or on all that know the model.

        Raises:
            NotFound: no host knows the model.
            InferFluxError: as a host says why not; others may have it then.
        """
        self._check_own(request.model)
        scale = request.scale if request.HasField("scale") else 1.0
        register = host_pb2.RegisterAdapterFile(
            model=request.model, name=request.adapter, path=request.path, scale=scale
        )
        command = self._new_command()
        command.register_adapter.CopyFrom(register)
        hosts = self._having(request.model, request.host_id)
        answers = {host.host_id: await self._ask(host.host_id, command) for host in hosts}
        log.info("an operator adds an adapter", model=request.model, adapter=request.adapter)
        return self._seen_on(request.model, answers)

    async def remove_adapter(self, request: model_pb2.RemoveAdapterRequest) -> model_pb2.Model:
        """Have requests not choose an adapter any more, on one host or on all that have it.

        Raises:
            NotFound: no host knows the model, or none has the adapter.
            InferFluxError: as a host says why not.
        """
        self._check_own(request.model)
        forget = host_pb2.ForgetAdapter(model=request.model, name=request.adapter)
        command = self._new_command()
        command.forget_adapter.CopyFrom(forget)
        hosts = [
            host
            for host in self._having(request.model, request.host_id)
            if adapter_of(host.models[request.model].card, request.adapter) is not None
        ]
        if not hosts:
            message = f"no host has an adapter {request.adapter!r} of the model {request.model[:200]!r}"
            raise NotFound(message, reason="UNKNOWN_ADAPTER")
        answers = {host.host_id: await self._ask(host.host_id, command) for host in hosts}
        log.info("an operator removes an adapter", model=request.model, adapter=request.adapter)
        return self._seen_on(request.model, answers)

    async def pull(self, request: model_pb2.PullRequest) -> model_pb2.StoreJob:
        """Have a host begin to pull a model into its store.

        Raises:
            NotFound: there is no such host.
            InvalidArgument: there are several hosts, and none is named.
            InferFluxError: as the host says why not.
        """
        host_id = self._store_of(request).host_id
        log.info("an operator has a model pulled", model=request.name, host_id=host_id)
        command = self._new_command()
        command.pull.CopyFrom(request)
        return await self._ask_store(host_id, command)

    async def remove(self, request: model_pb2.RemoveModelRequest) -> model_pb2.StoreJob:
        """Have a host delete a model of its store; raises as `pull`."""
        host_id = self._store_of(request).host_id
        log.info("an operator has a model removed", model=request.name, host_id=host_id)
        command = self._new_command()
        command.remove.CopyFrom(request)
        return await self._ask_store(host_id, command)

    async def verify(self, request: model_pb2.VerifyModelRequest) -> model_pb2.StoreJob:
        """Have a host read models of its store again; raises as `pull`."""
        host_id = self._store_of(request).host_id
        command = self._new_command()
        command.verify.CopyFrom(request)
        return await self._ask_store(host_id, command)

    def _store_of(
        self, request: model_pb2.PullRequest | model_pb2.RemoveModelRequest | model_pb2.VerifyModelRequest
    ) -> HostView:
        self._check_own(request.name)
        return self._named(request.host_id) if request.host_id else self._only("which host's store is meant?")

    def _check_own(self, name: str) -> None:
        """Raises NotFound for a model that another scheduler has. One has what names no model."""
        if not self._partition.has(name):
            raise NotFound(f"no host knows a model {name[:200]!r}", reason=OTHER_PARTITION)

    def _new_command(self) -> host_pb2.HostCommand:
        return host_pb2.HostCommand(term=self._term, partition=self._partition.name)

    def _host_for(self, request: model_pb2.LoadModelRequest) -> HostView:
        if not request.path:
            having = self._having(request.name, request.host_id)
            return max(having, key=lambda h: (h.models[request.name].worker_id != "", h.free_bytes))
        if request.host_id:
            return self._named(request.host_id)
        return self._only("which host has the file?")

    def _only(self, question: str) -> HostView:
        hosts = list(self._hosts)
        if len(hosts) > 1:
            names = ", ".join(sorted(host.host_id for host in hosts)[:8])
            raise InvalidArgument(f"{question} There are {names}", field="host_id")
        if not hosts:
            raise NotFound("no host of models is alive", reason="UNKNOWN_HOST")
        return hosts[0]

    def _having(self, name: str, host_id: str) -> list[HostView]:
        if host_id:
            self._named(host_id)
        having = [host for host in self._hosts.knowing(name) if host_id in ("", host.host_id)]
        if not having:
            raise NotFound(f"no host knows a model {name[:200]!r}", reason="UNKNOWN_MODEL")
        return having

    def _named(self, host_id: str) -> HostView:
        host = self._hosts.get(host_id)
        if host is None:
            raise NotFound(f"no host {host_id} is alive", reason="UNKNOWN_HOST")
        return host

    def _seen_on(self, name: str, answers: dict[str, host_pb2.HostedModel]) -> model_pb2.Model:
        """The model as the hosts say that have answered, and as others have reported it."""
        known = {h.host_id: h.models[name] for h in self._hosts.knowing(name)} | answers
        return as_model(known)
