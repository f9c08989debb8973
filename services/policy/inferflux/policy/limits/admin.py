"""What administrators do with limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferflux.common import logs
from inferflux.common.errors import Aborted, NotFound
from inferflux.policy.admission import Holder
from inferflux.policy.pages import check_page_size, page_after
from inferflux.v1 import policy_pb2

from .rules import NAMES, RateLimit, kind_subject, parse_limits, parse_subject, rule_of

if TYPE_CHECKING:
    from .limiter import Limiter
    from .store import RateLimitStore

log = logs.get()


class LimitAdmin:
    """Limits, as administrators see them."""

    def __init__(self, store: RateLimitStore, limiter: Limiter) -> None:
        self._store = store
        self._limiter = limiter

    async def list(self, request: policy_pb2.ListRateLimitsRequest) -> policy_pb2.ListRateLimitsResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        """
        check_page_size(request.page_size)
        token = request.page_token
        after = parse_subject(token, field="page_token") if token else None
        rules = await self._store.rules()
        page, goes_on = page_after(rules, lambda rule: rule.subject, after, request.page_size)
        return policy_pb2.ListRateLimitsResponse(
            rate_limits=[_message(rule) for rule in page], next_page_token=page[-1].subject if goes_on else ""
        )

    async def get(self, request: policy_pb2.GetRateLimitRequest) -> policy_pb2.GetRateLimitResponse:
        """Raises:
        InvalidArgument: there can be no such subject.
        """
        subject = parse_subject(request.subject)
        rule = rule_of(subject, await self._store.find_rules([subject, kind_subject(subject)]))
        usage = await self._limiter.usage(subject)
        return policy_pb2.GetRateLimitResponse(rate_limit=_message(rule), usage=usage)

    async def set(
        self, actor: Holder, request: policy_pb2.SetRateLimitRequest
    ) -> policy_pb2.SetRateLimitResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        Aborted: the limits were changed meanwhile.
        """
        given = request.rate_limit
        subject = parse_subject(given.subject, field="rate_limit.subject")
        limits = parse_limits({name: getattr(given, name) for name in NAMES}, field="rate_limit")
        rule = await self._store.set_rule(RateLimit(subject, limits, given.version))
        if rule is None:
            message = f"the limits of {subject} were changed meanwhile: read them again"
            raise Aborted(message, reason="VERSION_MISMATCH")
        log.info("limits set", subject=subject, by=actor.key_id, **limits)
        return policy_pb2.SetRateLimitResponse(rate_limit=_message(rule))

    async def delete(self, actor: Holder, request: policy_pb2.DeleteRateLimitRequest) -> None:
        """Raises:
        InvalidArgument: there can be no such subject.
        NotFound: it has no limits of its own.
        """
        subject = parse_subject(request.subject)
        if not await self._store.delete_rule(subject):
            raise NotFound(f"{subject} has no limits of its own", reason="UNKNOWN_RATE_LIMIT")
        log.info("limits deleted", subject=subject, by=actor.key_id)

    async def forget(self, subject: str) -> None:
        """Remove the limits of a subject that is gone, if it has any of its own."""
        await self._store.delete_rule(subject)


def _message(rule: RateLimit) -> policy_pb2.RateLimit:
    return policy_pb2.RateLimit(subject=rule.subject, version=rule.version, **rule.limits)
