"""The client of a cluster: a plain client for each server, and which of them has a key.

Not `RedisCluster` of the library: where a slot has moved, that says WAIT on another connection than the
write, and it raises errors of its own for connections that it closed: docs/decisions/redis-cluster-client.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, cast

import redis.asyncio
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection

from .routing import EVERYWHERE, Command, slot_of, units
from .slots import Address, SlotMap, read_map

# Servers that are asked for the map at a time, and how long.
_ASKED_AT_ONCE = 3
_ASK_LIMIT_S = 0.3
# Between two readings of the map.
_READ_EVERY_S = 0.1
# How often a command is sent on from one server to another.
_MOST_REDIRECTS = 5

_ASKING: Command = (("ASKING",), {})

_Server = redis.asyncio.Redis


class ClusterRedis(redis.asyncio.Redis):
    """Commands about keys, and pipelines of them, each sent to the primary that has the key.

    A pipeline keeps the order of commands for one server alone. No transactions. A command that meets a slot
    that moves key by key, and has some of its keys here and some there, ends as TryAgainError.

    Args:
        seeds: servers that are asked for the others at first.
        open_server: makes the client of one.
    """

    def __init__(self, seeds: Iterable[Address], open_server: Callable[[Address], _Server]) -> None:
        self._open_server = open_server
        self._servers = {address: open_server(address) for address in seeds}
        self._seeds = tuple(self._servers)
        # Of the pool, only its encoder and its protocol are used.
        super().__init__(connection_pool=self._servers[self._seeds[0]].connection_pool)
        self._map = SlotMap()
        self._moved: dict[int, Address] = {}
        self._suspects: set[Address] = set()
        self._reading: asyncio.Task[None] | None = None
        self._read_at = float("-inf")
        self._closing: set[asyncio.Task[None]] = set()

    async def has_replicas(self, key: str) -> bool:
        """True if the server that has a key may be replaced by a replica, reachable or not.

        Raises:
            redis.exceptions.ConnectionError: no server of the cluster answers.
        """
        slot = slot_of(["GET", key])
        await self._owner(slot)
        found = self._map.range_of(slot)
        return found is None or found.has_replicas

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] in EVERYWHERE:
            return await self._on_every_primary(args, options)
        [answer] = await self._run([(args, options)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register_script(self, script: Any) -> AsyncScript:  # type: ignore[override]
        return _Script(self, script)

    def pipeline(
        self,
        transaction: bool = False,
        shard_hint: str | None = None,  # noqa: ARG002  # the library's
    ) -> ClusterPipeline:
        if transaction:
            raise NotImplementedError("a cluster has no transactions here: use a script")
        return ClusterPipeline(self)

    async def scan_iter(  # type: ignore[override]
        self, match: str | None = None, count: int | None = None, _type: str | None = None, **options: Any
    ) -> AsyncIterator[bytes]:
        """Names of keys on every primary; a name may come twice while its slot moves."""
        await self._owner(0)
        for address in self._map.primaries:
            server = self._servers[address]
            async for name in server.scan_iter(match=match, count=count, _type=_type, **options):
                yield name

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: ARG002
        tasks = [task for task in (self._reading, *self._closing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers.values():
            await server.aclose()

    async def run_all(self, commands: Sequence[Command], scripts: Iterable[Any]) -> list[Any]:
        """Answers, or errors that servers answered with, in the order of the commands; those for one server
        share a round trip.

        Raises:
            redis.exceptions.RedisError: a server does not answer.
        """
        asked = units(commands)
        slots = [slot_of(unit[0][0]) for unit in asked]
        by_server: dict[Address, list[int]] = {}
        for index, slot in enumerate(slots):
            by_server.setdefault(await self._owner(slot), []).append(index)
        answers: list[list[Any]] = [[] for _ in asked]

        async def ask(address: Address, indexes: list[int]) -> None:
            together = [command for index in indexes for command in asked[index]]
            found = iter(await self._at(address, together, scripts))
            for index in indexes:
                answers[index] = [next(found) for _ in asked[index]]
                if isinstance(answers[index][0], AskError):  # MovedError is one
                    redirect = answers[index][0]
                    answers[index] = await self._run(asked[index], scripts, redirect, address)

        await _all(ask(address, indexes) for address, indexes in by_server.items())
        return [answer for each in answers for answer in each]

    async def _run(
        self,
        unit: Sequence[Command],
        scripts: Iterable[Any] = (),
        redirect: AskError | None = None,
        told_by: Address = ("", 0),
    ) -> list[Any]:
        """The answers to commands of one slot, or errors that a server answered with.

        Args:
            redirect: what the server `told_by` said already.
        """
        slot = slot_of(unit[0][0])
        for _ in range(_MOST_REDIRECTS):
            if redirect is None:
                told_by = await self._owner(slot)
                is_asking = False
            else:
                told_by = (redirect.host or told_by[0], redirect.port)
                is_asking = not isinstance(redirect, MovedError)
                if not is_asking:
                    self._moved[slot] = told_by
                    self._read_soon()
            answers = await self._at(told_by, unit, scripts, is_asking=is_asking)
            redirect = answers[0] if isinstance(answers[0], AskError) else None
            if redirect is None:
                return answers
        raise TryAgainError("the servers of the cluster send the command to each other")

    async def _at(
        self,
        address: Address,
        commands: Sequence[Command],
        scripts: Iterable[Any],
        *,
        is_asking: bool = False,
    ) -> list[Any]:
        """Answers of one server to commands on one connection."""
        server = self._server(address)
        try:
            if is_asking:
                # Each time, for the very next command.
                sent = [each for command in commands for each in (_ASKING, command)]
                answers = (await _pipelined(server, sent, scripts))[1::2]
            elif len(commands) == 1 and not scripts:
                answers = [await _answer(server, commands[0])]
            else:
                answers = await _pipelined(server, commands, scripts)
        except BaseException:
            # It is away, or its answer was not waited for any longer.
            self._suspect(address)
            raise
        if any(isinstance(answer, ClusterDownError) for answer in answers):
            self._suspect(address)
        else:
            self._suspects.discard(address)
        return answers

    async def _on_every_primary(self, words: Sequence[Any], options: dict[str, Any]) -> Any:
        """The answer of one. Of scripts, a server that is away gets them when it says that it lacks them; any
        other command fails with one."""
        await self._owner(0)
        limit_s = _ASK_LIMIT_S if words[0] == "SCRIPT LOAD" else None

        async def ask(address: Address) -> Any:
            async with asyncio.timeout(limit_s):
                [answer] = await self._at(address, [(words, options)], ())
            return answer

        answers = await asyncio.gather(*map(ask, self._map.primaries), return_exceptions=True)
        errors = [each for each in answers if isinstance(each, BaseException)]
        if errors and (limit_s is None or len(errors) == len(answers)):
            raise errors[0]
        return next(each for each in answers if not isinstance(each, BaseException))

    def _server(self, address: Address) -> _Server:
        server = self._servers.get(address)
        if server is None:
            server = self._servers[address] = self._open_server(address)
        return server

    async def _owner(self, slot: int) -> Address:
        """The primary that has a slot, as far as is known."""
        if not self._map.ranges:
            await asyncio.shield(self._read())
        if (moved := self._moved.get(slot)) is not None:
            return moved
        found = self._map.range_of(slot)
        if found is None:
            self._read_soon()
            raise ClusterDownError("no server of the cluster has the slot")
        return found.primary

    def _suspect(self, address: Address) -> None:
        self._suspects.add(address)
        self._read_soon()

    def _read_soon(self) -> None:
        """Read the map beside what goes on, unless that was just done."""
        if asyncio.get_running_loop().time() - self._read_at >= _READ_EVERY_S:
            self._read()

    def _read(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_map())
            self._reading.add_done_callback(_take_error)
        return self._reading

    async def _read_map(self) -> None:
        """Read the map of slots from some servers, and keep the one with the latest change.

        Raises:
            redis.exceptions.ConnectionError: none tells one.
        """
        self._read_at = asyncio.get_running_loop().time()
        known = list(dict.fromkeys([*self._map.addresses, *self._seeds]))
        random.shuffle(known)
        known.sort(key=lambda address: address in self._suspects)
        for at in range(0, len(known), _ASKED_AT_ONCE):
            asked = known[at : at + _ASKED_AT_ONCE]
            maps = await asyncio.gather(*(self._map_of(address) for address in asked))
            best = max((each for each in maps if each is not None), key=lambda each: each.epoch, default=None)
            if best is not None and best.ranges:
                self._take(best)
                return
        raise LostConnection("no server of the Redis Cluster tells where its keys are")

    async def _map_of(self, address: Address) -> SlotMap | None:
        server = self._server(address)
        try:
            async with asyncio.timeout(_ASK_LIMIT_S), server.pipeline(transaction=False) as pipeline:
                # As two words: the library would make something else of the answers.
                pipeline.execute_command("CLUSTER", "SLOTS")
                pipeline.execute_command("CLUSTER", "NODES")
                slots, nodes = await pipeline.execute()
            return read_map(slots, nodes, asked=address)
        except (RedisError, OSError, TimeoutError, ValueError):
            self._suspects.add(address)
            return None

    def _take(self, found: SlotMap) -> None:
        """Servers that have left are closed, with the calls that wait for them."""
        self._map = found
        self._moved.clear()
        stay = {*found.addresses, *self._seeds}
        self._suspects &= stay
        for address in self._servers.keys() - stay:
            task = asyncio.create_task(self._servers.pop(address).aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class _Script(AsyncScript):
    """Tells its text to the server that lacks it alone: others may be away."""

    async def __call__(self, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        if client is not None:
            return await super().__call__(keys, args, client)
        words = [len(keys or ()), *(keys or ()), *(args or ())]
        try:
            return await self.registered_client.execute_command("EVALSHA", self.sha, *words)
        except NoScriptError:
            return await self.registered_client.execute_command("EVAL", self.script, *words)


class ClusterPipeline(Pipeline):
    """Commands that go together where they have the same server."""

    def __init__(self, cluster: ClusterRedis) -> None:
        super().__init__(cluster.connection_pool, cluster.response_callbacks, False, None)
        self._cluster = cluster

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Execute the commands and return their answers, in order."""
        commands = cast("Sequence[Command]", self.command_stack)
        scripts = set(self.scripts)
        self.command_stack = []
        answers = await self._cluster.run_all(commands, scripts) if commands else []
        errors = (answer for answer in answers if isinstance(answer, Exception))
        if raise_on_error and (error := next(errors, None)) is not None:
            raise error
        return answers


async def _answer(server: _Server, command: Command) -> Any:
    words, options = command
    try:
        return await server.execute_command(*words, **options)  # type: ignore[no-untyped-call]
    except ResponseError as error:
        return error


async def _pipelined(server: _Server, commands: Sequence[Command], scripts: Iterable[Any]) -> list[Any]:
    async with server.pipeline(transaction=False) as pipeline:
        for words, options in commands:
            pipeline.execute_command(*words, **options)
        pipeline.scripts = set(scripts)
        return await pipeline.execute(raise_on_error=False)


async def _all(work: Iterable[Any]) -> None:
    """Wait for all of it, and raise the first error only then."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    if (error := next((each for each in ended if isinstance(each, BaseException)), None)) is not None:
        raise error


def _take_error(task: asyncio.Task[None]) -> None:
    """Mark a task's error as retrieved: those that wait for the task get it, if any do."""
    if not task.cancelled():
        task.exception()
