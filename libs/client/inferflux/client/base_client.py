"""Base of both clients: it makes requests from arguments, and streams from requests."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack

import grpc

from inferflux.api.channel_options import Option, with_proxy
from inferflux.api.tls import Tls
from inferflux.v1 import inference_pb2

from .calling import RequestCalls, WithInference
from .following import Following, Patience
from .gateways import Gateways
from .requests import Messages, Options, Prompt, Request, chat_request, generate_request
from .service_config import OWN_OPTIONS
from .target import resolve

_G = TypeVar("_G", bound=WithInference)
_S = TypeVar("_S")


class BaseClient(ABC, Generic[_G, _S]):
    """Calls a company's gateways: `Client` and `AsyncClient` say how.

    Args:
        addresses: gateways as host:port, the preferred one first: a list, or a text with commas. By default
            INFERFLUX_ENDPOINT.
        api_key: by default INFERFLUX_API_KEY.
        retries: how often a refused call waits for another try: as long as its error says.
        tls: how to speak TLS with the gateways. By default INFERFLUX_TLS_CA says it; without, plain text.

    Gateways are called without a proxy, unless INFERFLUX_USE_PROXY is 1.

    Raises:
        InvalidArgument: no address or no key, or one that cannot be; or a file of `tls` cannot be used.
    """

    def __init__(
        self,
        connect: Callable[[str, grpc.ChannelCredentials | None, Sequence[Option]], _G],
        addresses: str | Sequence[str],
        api_key: str,
        retries: int,
        tls: Tls | None,
    ) -> None:
        target = resolve(addresses, api_key, os.environ)
        self._api_key = target.api_key
        self._retries = retries
        credentials = (tls or Tls.from_env(os.environ)).credentials()
        options = with_proxy(OWN_OPTIONS, os.environ)
        self._gateways = Gateways(target.addresses, lambda address: connect(address, credentials, options))

    @abstractmethod
    def _open(self, calls: RequestCalls[_G], following: Following) -> _S:
        """A stream that makes these calls."""

    def chat(
        self,
        messages: Messages,
        *,
        model: str,
        request_id: str = "",
        timeout_s: float | None = None,
        resume_window_s: int = 30,
        priority: int = 0,
        skip_answer_cache: bool = False,
        adapter: str = "",
        tools: Sequence[inference_pb2.Tool] = (),
        tool_choice: inference_pb2.ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        chat_template_kwargs: str | Mapping[str, Any] = "",
        reasoning_effort: str = "",
        continue_final_message: bool = False,
        skip_generation_prompt: bool = False,
        has_optional_switches: bool = False,
        **options: Unpack[Options],
    ) -> _S:
        """Stream the answer to a conversation.

        Args:
            messages: a text of the user, or messages with `role` and `content`.
            request_id: your own, 1 to 64 of A-Z a-z 0-9 _ -; a new one for each request.
            timeout_s: for the whole answer. The deadline travels with the request.
            resume_window_s: how long a lost stream is tried for, and how long the request goes on meanwhile.
                0: a lost connection cancels the request.
            priority: higher is more urgent.
            skip_answer_cache: have the answer computed.
            adapter: of the model, where `model` does not name it: `model:adapter`.
            tools: functions that the model may call. The `delta` of the stream says what a chunk is.
            tool_choice: whether it must call one, or which.
            parallel_tool_calls: whether it may make several calls; it may, unless this is false.
            chat_template_kwargs: switches of the model's chat template by name, or a JSON object of them.
            reasoning_effort: how long the model shall think, where its template has a switch for it.
            continue_final_message: the last message, of the assistant, is begun; the answer goes on with it.
            skip_generation_prompt: the prompt ends with the last message.
            has_optional_switches: leave out switches that the template lacks, instead of refusing them.
            options: as `Options` lists them.
        """
        request = chat_request(
            messages,
            model=model,
            priority=priority,
            resume_window_s=resume_window_s,
            skip_answer_cache=skip_answer_cache,
            adapter=adapter,
            options=options,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            chat_template_kwargs=chat_template_kwargs,
            reasoning_effort=reasoning_effort,
            continue_final_message=continue_final_message,
            skip_generation_prompt=skip_generation_prompt,
            has_optional_switches=has_optional_switches,
        )
        return self._stream(request, request_id, timeout_s, resume_window_s)

    def generate(
        self,
        prompt: Prompt,
        *,
        model: str,
        request_id: str = "",
        timeout_s: float | None = None,
        resume_window_s: int = 30,
        priority: int = 0,
        skip_answer_cache: bool = False,
        adapter: str = "",
        **options: Unpack[Options],
    ) -> _S:
        """Stream the continuation of a text or of token ids. Arguments are as in `chat`."""
        request = generate_request(
            prompt,
            model=model,
            priority=priority,
            resume_window_s=resume_window_s,
            skip_answer_cache=skip_answer_cache,
            adapter=adapter,
            options=options,
        )
        return self._stream(request, request_id, timeout_s, resume_window_s)

    def resume(self, request_id: str, *, offset: int = 0, timeout_s: float | None = None) -> _S:
        """Stream a request's tokens from `offset` on, while it runs or shortly after.

        Closing the stream cancels nothing.
        """
        patience = Patience(retries=self._retries, deadline_s=_deadline_s(timeout_s))
        following = Following(patience, n_gateways=len(self._gateways), request_id=request_id, offset=offset)
        return self._open(RequestCalls(self._gateways, self._api_key, None), following)

    def _stream(self, request: Request, request_id: str, timeout_s: float | None, window_s: int) -> _S:
        patience = Patience(window_s, self._retries, _deadline_s(timeout_s))
        following = Following(patience, n_gateways=len(self._gateways), request_id=request_id)
        return self._open(RequestCalls(self._gateways, self._api_key, request), following)


def _deadline_s(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
