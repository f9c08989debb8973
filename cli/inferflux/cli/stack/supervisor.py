"""The supervisor: starts the stages of a plan, keeps what runs running, ends all of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Self

from inferflux.api.tls import Tls
from inferflux.cli.reach.client import Client
from inferflux.cli.reach.state_dir import FIRST_TENANT, StackState, StateDir
from inferflux.cli.reach.target import Target
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.process.child.children import describe_end
from inferflux.common.process.machine.cores import usable_cores
from inferflux.common.servers import nats_users, redis_users

from . import readiness, store
from .access import Access, grant
from .backoff import Backoff
from .events import EventKind, Observer, StackEvent, ignore
from .follow import LogTail
from .options import StackOptions, check_variables, find_model
from .plan import END_ORDER, joining, plan
from .ports import Ports, choose
from .process import ManagedProcess
from .servers import LOOPBACK
from .start_errors import StartError, did_not_start, not_ready

_POLL_S = 0.03
# What a process gets beyond its drain limit to put its things away.
_TIDY_UP_S = 7.0
# Between two looks at whether nats-server writes to its disk.
_STORE_INTERVAL_S = 1.0
_STORE_END_LIMIT_S = 10.0
# Between two looks at a worker's log, and what that says of an engine.
_LOG_INTERVAL_S = 0.5
_ENGINE_DIED = "engine died, starting it again"


class Stack:
    """A running stack; `async with Stack(StackOptions(model=...)) as stack:` is ready inside, and gone after.

    Attributes:
        processes: by name: nats and valkey, where they are the stack's own, policy (or policy-0, ...),
            scheduler (or scheduler-0, ...), worker-0, ...,
            worker-prefill-0, ..., worker-decode-0, ..., gateway (or gateway-0, ...).

    Raises on entering:
        CommandError: a variable is gone, another stack runs in this state directory, a port is taken,
            the model is no GGUF file.
        StartError: a process ended or did not become ready.
    """

    def __init__(self, options: StackOptions | None = None, *, observe: Observer = ignore) -> None:
        self._options = options or StackOptions()
        self._observe = observe
        self._cleanup = contextlib.ExitStack()
        self._keepers: list[asyncio.Task[None]] = []
        self._ports = Ports(0, 0, 0, 0, 0)
        self._access: Access | None = None
        self.processes: dict[str, ManagedProcess] = {}
        self.api_key = ""
        self.state_dir = StateDir(Path())
        self.model_name = ""

    @property
    def endpoints(self) -> tuple[str, ...]:
        """host:port of each gateway."""
        return tuple(f"{LOOPBACK}:{port}" for port, _ in self._ports.gateways)

    @property
    def endpoint(self) -> str:
        """Address of the first gateway."""
        return self.endpoints[0]

    @property
    def http_urls(self) -> tuple[str, ...]:
        """URL at which each gateway serves HTTP."""
        scheme = "https" if self.tls.is_on else "http"
        return tuple(f"{scheme}://{LOOPBACK}:{port}" for _, port in self._ports.gateways)

    @property
    def http_url(self) -> str:
        """HTTP URL of the first gateway."""
        return self.http_urls[0]

    @property
    def nats_url(self) -> str:
        """URL of NATS with a user who may do everything."""
        return self._granted.nats_url(self._ports, nats_users.OPERATOR)

    @property
    def tokens_url(self) -> str:
        """NATS with a user who reads the tokens of the first tenant alone."""
        return self._granted.nats_url(self._ports, nats_users.observer_name(FIRST_TENANT))

    @property
    def redis_url(self) -> str:
        """URL of Redis with a user who may do everything."""
        return self._granted.redis_url(self._ports, redis_users.OPERATOR)

    @property
    def target(self) -> Target:
        return Target(",".join(self.endpoints), self.api_key, self.tls)

    @property
    def tls(self) -> Tls:
        """TLS settings for its gateways."""
        return self._granted.client_tls

    @property
    def role_words(self) -> str:
        """How many workers have which role, in words; "" without roles."""
        return self._options.role_words

    @property
    def metrics(self) -> dict[str, str]:
        """host:port of every service's /metrics."""
        services = (p.spec for p in self.processes.values() if p.spec.is_service)
        return {spec.name: f"{LOOPBACK}:{spec.port}" for spec in services}

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def kill(self, name: str) -> None:
        """kill -9 a process, which then stays down until `restart`."""
        process = self.processes[name]
        process.is_held_down = True
        process.signal(signal.SIGKILL)
        await process.wait()

    async def restart(self, name: str) -> None:
        """Start a process again, with kill -9 first if it runs; returns when it is ready."""
        process = self.processes[name]
        await self.kill(name)
        await process.start()
        process.is_held_down = False
        await self._until_ready([process], watched=[process])
        self._keep_alive(process)
        self._publish()

    async def wait_ready(self, limit_s: float = 60.0) -> None:
        """Return once every process that is not held down is ready."""
        async with asyncio.timeout(limit_s):
            for process in self.processes.values():
                if not process.is_held_down:
                    await _until_it_answers(process)

    async def stop(self) -> None:
        """End everything, the gateway first; running requests get the drain limit to finish."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._keepers.clear()
        try:
            for kinds in END_ORDER:
                ending = [process for process in self.processes.values() if process.spec.kind in kinds]
                await asyncio.gather(*(self._end(process) for process in ending))
        finally:
            self.kill_all()
            self._cleanup.close()

    def kill_all(self) -> None:
        """End everything this instant."""
        for process in self.processes.values():
            process.kill_group()

    def abandon(self) -> None:
        """`kill_all` for a caller that is about to leave: without waiting, and nothing is left on disk."""
        self.kill_all()
        self._cleanup.close()

    @property
    def _granted(self) -> Access:
        if self._access is None:
            raise RuntimeError("the stack was not started")
        return self._access

    async def _start(self) -> None:
        check_variables({**os.environ, **self._options.env})
        model = find_model(self._options.model)
        self.state_dir = StateDir(self._options.state_dir or self._temporary_directory())
        self.state_dir.prepare()
        has_leftovers = self.state_dir.has_leftovers()
        self._cleanup.enter_context(self.state_dir.locked())
        self.api_key = self.state_dir.api_key()
        self._ports = await choose(self._options, wait_for_leftovers=has_leftovers)
        folder = self.state_dir.certificates if self._options.has_tls else None
        if folder is not None:
            await asyncio.to_thread(_make_certificates, folder)
        access = grant(self.state_dir, self._options.worker_roles, certificates=folder)
        other_nats, other_redis = self._options.nats_url, self._options.redis_url
        self._access = replace(access, other_nats=other_nats, other_redis=other_redis)
        service_key = self.state_dir.service_key()
        stages = plan(
            self._options,
            model=model,
            ports=self._ports,
            state_dir=self.state_dir.path,
            api_key=self.api_key,
            access=self._access,
            cores=usable_cores(),
            service_key=service_key,
        )
        told = joining(self._ports, self._access, state_dir=self.state_dir.path, service_key=service_key)
        for kind, variables in told.items():
            self.state_dir.write_environment(kind, variables)
        managed = [[ManagedProcess(spec, self._fresh_log(spec.name)) for spec in stage] for stage in stages]
        self.processes = {process.name: process for stage in managed for process in stage}
        for name in (*self.processes, "model"):
            self._observe(StackEvent(EventKind.PLANNED, name))
        for stage in managed:
            for process in stage:
                self._observe(StackEvent(EventKind.STARTING, process.name))
                await process.start()
            await self._until_ready(stage, watched=self.processes.values())
        await self._until_listed()
        for process in self.processes.values():
            self._keep_alive(process)
        if self._options.restarts:
            for process in self.processes.values():
                watch = {"nats": self._watch_store, "worker": self._watch_engines}.get(process.spec.kind)
                if watch is not None:
                    self._keepers.append(asyncio.create_task(watch(process), name=f"watch {process.name}"))
        self._publish()

    async def _until_ready(
        self, waiting: Iterable[ManagedProcess], *, watched: Collection[ManagedProcess]
    ) -> None:
        """Return when all of `waiting` are ready.

        Raises:
            StartError: one of `watched` ended, or time is up.
        """
        left = list(waiting)
        said: dict[str, str] = {}
        deadline = asyncio.get_running_loop().time() + self._options.start_limit_s
        while left:
            await self._check_alive(watched)
            for process in list(left):
                is_ready, detail = await readiness.ask(process.spec)
                if is_ready:
                    left.remove(process)
                    self._observe(StackEvent(EventKind.READY, process.name))
                elif detail and said.get(process.name) != detail:
                    said[process.name] = detail
                    self._observe(StackEvent(EventKind.WAITING, process.name, detail))
            if left and asyncio.get_running_loop().time() > deadline:
                limit_s, name = self._options.start_limit_s, left[0].name
                raise not_ready(left[0], limit_s, said.get(name, ""))
            if left:
                await asyncio.sleep(_POLL_S)

    async def _until_listed(self) -> None:
        """Return when the gateway lists a model with every worker: only then can a client be served."""
        self._observe(StackEvent(EventKind.STARTING, "model"))
        deadline = asyncio.get_running_loop().time() + self._options.start_limit_s
        last_word = "no worker has announced it"
        async with Client(self.target) as client:
            while True:
                await self._check_alive(self.processes.values())
                try:
                    for model in await client.models():
                        if model.workers >= self._options.n_workers:
                            self.model_name = model.card.name
                            detail = f"{model.card.name}, {model.card.context_length:,} tokens of context"
                            self._observe(StackEvent(EventKind.READY, "model", detail))
                            return
                except InferFluxError as error:
                    last_word = error.message
                if asyncio.get_running_loop().time() > deadline:
                    raise StartError(f"no model is served: {last_word}")
                await asyncio.sleep(_POLL_S)

    async def _check_alive(self, processes: Iterable[ManagedProcess]) -> None:
        for process in processes:
            if process.was_started and not process.is_running and not process.is_held_down:
                raise did_not_start(process, await process.wait())

    def _keep_alive(self, process: ManagedProcess) -> None:
        self._keepers = [task for task in self._keepers if not task.done()]
        self._keepers.append(asyncio.create_task(self._keep(process), name=f"keep {process.name}"))

    async def _keep(self, process: ManagedProcess) -> None:
        """Start a process again whenever it dies, unless it is meant to be down."""
        backoff = Backoff()
        while True:
            code = await process.wait()
            if process.is_held_down or not self._options.restarts:
                return
            delay_s = backoff.after(process.uptime_s)
            detail = f"{describe_end(code)}; starting it again in {delay_s:g} s (log: {process.log_file})"
            self._observe(StackEvent(EventKind.DIED, process.name, detail))
            await asyncio.sleep(delay_s)
            if process.is_held_down or process.is_running:
                return
            process.kill_group()
            await process.start()
            self._publish()
            await self._until_it_settles(process)

    async def _watch_store(self, process: ManagedProcess) -> None:
        """End a nats-server that does not write though its disk would take it: `_keep` starts it again, which
        heals it. What it has stored stays. While the disk is full, that would heal nothing.
        """
        directory, port = process.spec.data_dir, process.spec.monitor_port
        while directory is not None:
            await asyncio.sleep(_STORE_INTERVAL_S)
            if process.is_held_down or not process.is_running:
                continue
            problem = await asyncio.to_thread(store.write_error, port)
            has_space = bool(problem) and await asyncio.to_thread(store.takes_writes, directory)
            if has_space:
                detail = f"does not write, though its disk does again: {problem}; starting it again"
                self._observe(StackEvent(EventKind.DIED, process.name, detail))
                await process.end(_STORE_END_LIMIT_S)

    async def _watch_engines(self, process: ManagedProcess) -> None:
        """Tell of engines that die: their worker starts them again, and logs it."""
        tail = LogTail(process.log_file)
        tail.new_lines()
        while True:
            await asyncio.sleep(_LOG_INTERVAL_S)
            if any(_ENGINE_DIED in line for line in tail.new_lines()):
                detail = f"starts its engine again, which died (log: {process.log_file})"
                self._observe(StackEvent(EventKind.ENGINE_DIED, process.name, detail))
                await self._until_it_settles(process)

    async def _until_it_settles(self, process: ManagedProcess) -> None:
        while process.is_running:
            if (await readiness.ask(process.spec))[0]:
                self._observe(StackEvent(EventKind.RESTARTED, process.name))
                return
            await asyncio.sleep(_POLL_S)

    async def _end(self, process: ManagedProcess) -> None:
        if not process.was_started:
            return
        self._observe(StackEvent(EventKind.STOPPING, process.name))
        limit_s = self._options.drain_limit_s + _TIDY_UP_S
        went = await process.end(limit_s)
        detail = "" if went else f"had to be killed: it did not end within {limit_s:g} s"
        self._observe(StackEvent(EventKind.STOPPED, process.name, detail))

    def _publish(self) -> None:
        self.state_dir.publish(
            StackState(
                pid=os.getpid(),
                endpoint=",".join(self.endpoints),
                api_key=self.api_key,
                nats_url=self.nats_url,
                tokens_url=self.tokens_url,
                redis_url=self.redis_url,
                model=self.model_name,
                processes={name: process.pid for name, process in self.processes.items()},
                metrics=self.metrics,
                tls_ca=str(self.tls.ca),
            )
        )

    def _fresh_log(self, name: str) -> Path:
        path = self.state_dir.log_file(name)
        if path.exists():
            path.replace(path.with_name(f"{path.name}.1"))
        path.touch(mode=0o600)
        return path

    def _temporary_directory(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="inferflux-"))
        self._cleanup.callback(shutil.rmtree, path, ignore_errors=True)
        return path


def _make_certificates(folder: Path) -> None:
    # Only a stack with TLS pays for its import.
    from .certificates import write_certificates

    write_certificates(folder)


async def _until_it_answers(process: ManagedProcess) -> None:
    # Another process's readiness can only be asked for again and again.
    while not (await readiness.ask(process.spec))[0]:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
