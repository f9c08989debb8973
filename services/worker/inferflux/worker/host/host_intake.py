"""Messages to a host over NATS: commands of the scheduler to load models and to unload them, and notices of
gateways which tokens were lost."""

from __future__ import annotations

import time

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import checks, partitions, subjects
from inferflux.common.contract.errors import Aborted, InferFluxError, Internal, InvalidArgument
from inferflux.common.contract.messages.notices import parse_wanted
from inferflux.common.contract.terms import SeenTerms
from inferflux.common.process import logs
from inferflux.common.process.bad_messages import BadMessages
from inferflux.common.process.tasks import Background
from inferflux.v1 import host_pb2
from inferflux.worker.model.emit import Emitter

from .catalog import Known
from .host import Host
from .host_store import HostStore

log = logs.get("worker.host")


class HostIntake:
    """Checks commands, has the host obey, and answers what the model is like then. Has lost tokens published
    again.

    Args:
        terms: the latest one of each partition counts.
    """

    def __init__(
        self,
        bus: Bus,
        host_id: str,
        terms: SeenTerms,
        host: Host,
        store: HostStore,
        emitter: Emitter,
        bad: BadMessages,
    ) -> None:
        self._bus = bus
        self._host_id = host_id
        self._terms = terms
        self._host = host
        self._store = store
        self._emitter = emitter
        self._bad = bad
        self._background = Background()

    async def listen(self) -> None:
        await self._bus.serve(subjects.host_command(self._host_id), self._on_command)
        await self._bus.serve(subjects.WANTED_ALL, self._on_wanted)

    async def close(self) -> None:
        """Give up what has no answer yet."""
        await self._background.close()

    async def _on_command(self, message: Message) -> None:
        try:
            command = checks.decode(host_pb2.HostCommand, message.data)
        except InvalidArgument as error:
            self._bad.note("command", error, subject=message.subject)
            raise
        # Reading a file takes a while: other commands do not wait for it.
        self._background.start(self._answer(command, message))

    async def _on_wanted(self, message: Message) -> None:
        try:
            notice = parse_wanted(message.data, message.subject)
        except InvalidArgument as error:
            self._bad.note("wanted", error, subject=message.subject)
            return
        await self._emitter.repeat(subjects.tokens(notice.tenant, notice.request_id), notice.offset)

    async def _answer(self, command: host_pb2.HostCommand, message: Message) -> None:
        try:
            partition = partitions.parse(command.partition).name
            if not self._terms.accepts(partition, command.term, time.time_ns() // 1_000_000):
                raise Aborted(f"term {command.term} does not count", reason="OLD_TERM")
            reply = await self._reply(command)
        except InferFluxError as error:
            log.info("not done", command=command.WhichOneof("command"), why=error.message)
            field = error.field if isinstance(error, InvalidArgument) else ""
            reply = host_pb2.HostReply(
                code=error.code, reason=error.reason, field=field, message=error.message
            )
        try:
            await message.respond(reply.SerializeToString())
        except InferFluxError as error:
            log.warning("could not say what was done", reason=error.reason)

    async def _reply(self, command: host_pb2.HostCommand) -> host_pb2.HostReply:
        try:
            match command.WhichOneof("command"):
                case "pull":
                    return host_pb2.HostReply(job=await self._store.pull(command.pull))
                case "remove":
                    return host_pb2.HostReply(job=await self._store.remove(command.remove.name))
                case "verify":
                    return host_pb2.HostReply(job=await self._store.verify(command.verify.name))
        except OSError as error:  # it is read-only, or no folder any more
            raise Internal(f"the store does not work: {error}", reason="STORE_BROKEN") from error
        return host_pb2.HostReply(model=(await self._obey(command)).to_message())

    async def _obey(self, command: host_pb2.HostCommand) -> Known:
        match command.WhichOneof("command"):
            case "load":
                return await self._host.load(command.load.name)
            case "unload":
                return await self._host.unload(command.unload.name)
            case "register":
                return await self._host.register(command.register)
            case "forget":
                return await self._host.forget(command.forget.name, unloads=True)
            case "register_adapter":
                return await self._host.adapters.add(command.register_adapter)
            case "forget_adapter":
                forget = command.forget_adapter
                return await self._host.adapters.remove(forget.model, forget.name)
        raise InvalidArgument("the command is of an unknown kind", field="command")
