"""One stack for tests that break it: it is mended between two of them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc.aio
from harness.client import Client

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import admin_pb2, cluster_pb2, scheduler_pb2

_MEND_LIMIT_S = 60.0


class BreakableStack:
    """Its processes stay dead until the next test. Use as an async context manager."""

    def __init__(self, *, workers: int = 2, schedulers: int = 1, slots: int = 8, **more: Any) -> None:
        self._options = StackOptions(
            workers=workers, schedulers=schedulers, slots=slots, threads=1, restarts=False, **more
        )
        self._stack: Stack | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def whole(self) -> Stack:
        """The stack with all processes running, idle, and nothing cached: a new one where mending fails."""
        if self._stack is not None:
            try:
                await self._mend(self._stack)
            except (CommandError, InferFluxError, grpc.aio.AioRpcError, TimeoutError) as error:
                print(f"the stack could not be mended: {error!r}")
                await self._stop()
        if self._stack is None:
            self._stack = await Stack(self._options).__aenter__()
        return self._stack

    async def _mend(self, stack: Stack) -> None:
        for name, process in stack.processes.items():
            if not process.is_running:
                await stack.restart(name)
        await stack.wait_ready()
        client = Client(stack.endpoint, stack.api_key)
        try:
            await client.until_status(self._has_all_workers, _MEND_LIMIT_S)
            for worker in (await client.status()).scheduler.workers:
                if worker.status.state == scheduler_pb2.WORKER_STATE_DRAINING:
                    request = admin_pb2.UndrainWorkerRequest(worker_id=worker.status.worker_id)
                    await client.admin.UndrainWorker(request, metadata=client.metadata())
            await client.until_status(self._are_all_ready, _MEND_LIMIT_S)
            await client.until_idle()
            everything = admin_pb2.ClearCacheRequest(prefixes=True, tiers=True)
            await client.admin.ClearCache(everything, metadata=client.metadata())
        finally:
            await client.close()

    def _has_all_workers(self, status: cluster_pb2.GetStatusResponse) -> bool:
        return len(status.scheduler.workers) == self._options.workers

    def _are_all_ready(self, status: cluster_pb2.GetStatusResponse) -> bool:
        states = [worker.status.state for worker in status.scheduler.workers]
        return states == [scheduler_pb2.WORKER_STATE_READY] * self._options.workers

    async def _stop(self) -> None:
        if self._stack is not None:
            stack, self._stack = self._stack, None
            await stack.stop()
