"""Where bodies of POST /generate and messages of the websocket are parsed."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from inferflux.common.process.tasks import LARGE_BYTES
from inferflux.gateway.http.front.exchange import to_json
from inferflux.gateway.http.openai.bodies import GenerateBody
from inferflux.gateway.http.openai.generate import to_request
from inferflux.gateway.http.paths import reading
from inferflux.gateway.http.paths.reading import BodyReader, parse
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.policy.caller import Caller


class Named:
    async def meant(self, name: str, _role: int, _caller: Caller) -> str:
        return name


@pytest.mark.parametrize(("n_bytes", "is_on_loop"), [(0, True), (LARGE_BYTES, False)])
async def test_only_a_large_message_is_parsed_by_another_thread(
    monkeypatch: pytest.MonkeyPatch, n_bytes: int, is_on_loop: bool
) -> None:
    threads: list[bool] = []

    def noted(kind: Any, data: bytes) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(kind, data)

    monkeypatch.setattr(reading, "parse", noted)
    data = to_json({"model": "m", "prompt": "a" * (n_bytes + 1)})
    bodies = BodyReader(cast("ModelRegistry", Named()))
    _, prompt = await bodies.read(Caller("t", "k"), data, GenerateBody, to_request)
    assert len(prompt.SerializeToString()) > n_bytes
    assert threads == [is_on_loop]
