"""Open Policy Agent: asked over its data API, `POST /v1/data/<path>`.

The document's value is `true` or `false`, or an object with `allow` and, if it likes, `reason`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferflux.common.contract.errors import Unavailable

from .facts import PERMITTED, BackendFailed, Decision, Facts, Step

if TYPE_CHECKING:
    from inferflux.common.http.http_client import HttpClient

NAME = "opa"
MAX_ANSWER_BYTES = 64 << 10
_OK = 200


def input_of(facts: Facts) -> dict[str, Any]:
    """`input`, as rules see it."""
    about: dict[str, Any] = {
        "step": facts.step.value,
        "method": facts.method,
        "tenant": facts.tenant,
        "key_id": facts.key_id,
        "scopes": facts.scopes,
        "roles": facts.roles,
        "issuer": facts.issuer,
        "subject": facts.subject,
    }
    if facts.step is Step.ADMIT:
        return about | {"scope": facts.scope}
    about |= {
        "model": facts.model,
        "priority": facts.priority,
        "prompt_tokens": facts.prompt_tokens,
        "max_tokens": facts.max_tokens,
    }
    return about if facts.text is None else about | {"text": facts.text}


def parse_answer(answer: object) -> Decision:
    """Read an answer of OPA. Whatever is no clear yes or no is no decision.

    Raises:
        BackendFailed: the document is not there, or has another shape.
    """
    if not isinstance(answer, Mapping) or "result" not in answer:
        raise BackendFailed("the document is undefined")
    result = answer["result"]
    if isinstance(result, bool):
        return Decision(result)
    if not isinstance(result, Mapping) or not isinstance(result.get("allow"), bool):
        raise BackendFailed("the document is neither a boolean nor an object with `allow`")
    if result["allow"]:
        return PERMITTED
    reason = result.get("reason", "")
    return Decision(is_permitted=False, reason=reason if isinstance(reason, str) else "")


class Opa:
    """Asks one OPA server.

    Args:
        url: of the document: `http://127.0.0.1:8181/v1/data/inferflux/decision`.
        token: sent as `Authorization: Bearer`; "" sends none.
        timeout_s: for one answer.
    """

    name = NAME

    def __init__(self, client: HttpClient, url: str, *, token: str = "", timeout_s: float) -> None:
        self._client = client
        self._url = url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    async def decide(self, facts: Facts) -> Decision:
        """Raises:
        BackendFailed: OPA is away, too slow, or answers something else than a decision.
        """
        try:
            answer = await self._client.post_json(
                self._url,
                {"input": input_of(facts)},
                headers=self._headers,
                timeout_s=self._timeout_s,
                max_body_bytes=MAX_ANSWER_BYTES,
            )
        except Unavailable as error:
            raise BackendFailed(error.message) from None
        if answer.status != _OK:
            raise BackendFailed(f"OPA answered with status {answer.status}")
        try:
            return parse_answer(answer.json())
        except ValueError:
            raise BackendFailed("OPA did not answer JSON") from None
