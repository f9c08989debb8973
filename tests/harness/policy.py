"""A policy process as it runs in production, and a client to it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import grpc.aio
import pytest
from harness.audit import AUDIT_KEY
from harness.starting import patched, start
from harness.starting_template import patch_constants
from prometheus_client import CollectorRegistry

from inferflux.cli.stack.servers import free_port
from inferflux.common.calls import grpc_client
from inferflux.common.process.lifecycle import Shutdown
from inferflux.policy.app import serve
from inferflux.policy.settings import PolicySettings
from inferflux.v1 import policy_pb2, policy_pb2_grpc

SERVICE_KEY = "a-service-key-of-tests"


async def until(condition: Callable[[], Awaitable[bool]], *, timeout_s: float = 30.0) -> None:
    """Return once the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


class AsService:
    """A stub whose calls prove that a service makes them."""

    def __init__(self, stub: object, service_key: str = SERVICE_KEY) -> None:
        self._stub = stub
        self._own = grpc_client.outgoing(service_key=service_key)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)

        def call(request: object, *, metadata: tuple[tuple[str, str], ...] = (), **more: Any) -> Any:
            return method(request, metadata=(*metadata, *self._own), **more)

        return call


class PolicyProcess:
    """`python -m inferflux.policy`, with a channel to it.

    Attributes:
        stub: its calls have the service key.
        stranger: its calls have none.
    """

    def __init__(self, directory: Path, redis_url: str, **variables: str) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.log_path = directory / f"policy-{self.port}.log"
        self.environment = {
            "INFERFLUX_POLICY_LISTEN": f"127.0.0.1:{self.port}",
            "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
            "INFERFLUX_REDIS_URL": redis_url,
            "INFERFLUX_LOG_FORMAT": "json",
            "INFERFLUX_AUDIT_DIR": str(directory / "audit"),
            "INFERFLUX_AUDIT_KEY": AUDIT_KEY,
            "INFERFLUX_EXIT_WITH_PARENT": "true",
            "INFERFLUX_SERVICE_KEY": SERVICE_KEY,
            **patched("inferflux.policy.app:_STORE_CHECK_INTERVAL_S", 0.1),
        } | variables
        self.process: subprocess.Popen[bytes] | None = None
        self.channel = grpc_client.channel(f"127.0.0.1:{self.port}")
        self.stranger = policy_pb2_grpc.PolicyServiceStub(self.channel)
        self.stub = AsService(self.stranger)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Start it; gives it once it is ready, and closes it afterwards."""
        self.start()
        try:
            await self.wait_ready()
            yield self
        finally:
            await self.close()

    def start(self) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("INFERFLUX_")}
        with self.log_path.open("ab") as log:
            self.process = start("inferflux.policy", stderr=log, env=inherited | self.environment)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def close(self) -> None:
        await self.channel.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def readiness(self) -> dict[str, Any]:
        """What /readyz says; empty while nothing listens."""
        return await asyncio.to_thread(self._readiness)

    def _readiness(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.metrics_port}/readyz"
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.load(error))
        except OSError:
            return {}

    async def wait_ready(self) -> None:
        async def is_so() -> bool:
            return (await self._readiness_alive()).get("ready") is True

        await until(is_so)

    async def wait_without_store(self) -> None:
        """Return once the process says that its store does not answer; it serves by then."""

        async def is_so() -> bool:
            store = (await self._readiness_alive()).get("conditions", {}).get("store", {})
            return store.get("ok") is False and "not answer" in store["detail"]

        await until(is_so)

    async def _readiness_alive(self) -> dict[str, Any]:
        self._assert_alive()
        return await self.readiness()

    def _assert_alive(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, self.log_path.read_text()

    async def metric(self, name: str) -> float:
        """The value of a metric, named with its labels as `/metrics` has it; 0 where it is not there."""
        return await asyncio.to_thread(self._metric, name)

    def _metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return next(
            (float(value) for line in lines for key, _, value in [line.rpartition(" ")] if key == name), 0
        )

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    async def admit(
        self, credential: str, scope: str = "inference", *, is_counted: bool = False
    ) -> policy_pb2.AdmitResponse:
        request = policy_pb2.AdmitRequest(
            credential=credential, scope=scope, request_id="r-1", is_counted=is_counted
        )
        return await self.stub.Admit(request, timeout=10)  # type: ignore[no-any-return]

    async def create_key(
        self,
        admin: str,
        *,
        tenant: str = "acme",
        scopes: tuple[str, ...] = ("inference",),
        max_priority: int | None = None,
        cache_scope: str = "",
        skip_answer_cache: bool = False,
        **more: Any,
    ) -> policy_pb2.CreateApiKeyResponse:
        request = policy_pb2.CreateApiKeyRequest(
            tenant=tenant,
            name="test",
            scopes=scopes,
            max_priority=max_priority,
            cache_scope=cache_scope,
            skip_answer_cache=skip_answer_cache,
            **more,
        )
        return await self.stranger.CreateApiKey(request, metadata=bearer(admin), timeout=10)

    async def list_keys(self, admin: str, *, tenant: str = "") -> list[policy_pb2.ApiKey]:
        request = policy_pb2.ListApiKeysRequest(tenant=tenant)
        return list((await self.stranger.ListApiKeys(request, metadata=bearer(admin), timeout=10)).api_keys)

    async def revoke(self, admin: str, key_id: str) -> None:
        request = policy_pb2.RevokeApiKeyRequest(key_id=key_id)
        await self.stranger.RevokeApiKey(request, metadata=bearer(admin), timeout=10)

    async def limit(self, admin: str, subject: str, **limits: int) -> policy_pb2.RateLimit:
        """Set the limits of a subject."""
        request = policy_pb2.SetRateLimitRequest(rate_limit=policy_pb2.RateLimit(subject=subject, **limits))
        answer = await self.stranger.SetRateLimit(request, metadata=bearer(admin), timeout=10)
        return answer.rate_limit

    async def used(self, admin: str, subject: str) -> dict[str, int]:
        """What a subject has used of each of its limits."""
        request = policy_pb2.GetRateLimitRequest(subject=subject)
        answer = await self.stranger.GetRateLimit(request, metadata=bearer(admin), timeout=10)
        return {usage.name: usage.used for usage in answer.usage}


class PolicyInLoop(PolicyProcess):
    """The policy service in the test's own loop, for tests that neither kill it nor read its log."""

    _shutdown: Shutdown
    _served: asyncio.Task[None]
    _patching: pytest.MonkeyPatch

    def start(self) -> None:
        self._shutdown = Shutdown()
        environment, self._patching = dict(self.environment), pytest.MonkeyPatch()
        patch_constants(environment, self._patching.setattr)
        with patch.dict(os.environ, environment):
            settings = PolicySettings()
        self._served = asyncio.create_task(serve(settings, self._shutdown, CollectorRegistry()))

    async def close(self) -> None:
        await self.channel.close()
        self._shutdown.request()
        await self._served
        self._patching.undo()

    def _assert_alive(self) -> None:
        if self._served.done():
            self._served.result()
            raise AssertionError("it has ended")


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return grpc_client.outgoing(api_key=secret)


async def refusal(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    """The error a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value
