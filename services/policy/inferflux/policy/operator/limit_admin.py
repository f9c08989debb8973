"""Limits, as administrators list, set and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferflux.common.contract.errors import Aborted, NotFound
from inferflux.common.contract.pages import check_page_size, page_after
from inferflux.common.process import logs
from inferflux.policy.decide.admission import Holder
from inferflux.policy.decide.limits.rules import (
    NAMES,
    RateLimit,
    kind_subject,
    parse_limits,
    parse_subject,
    rule_of,
)
from inferflux.v1 import policy_pb2

if TYPE_CHECKING:
    from inferflux.policy.decide.limits.store import RateLimitStore
    from inferflux.policy.storage.limiter import Limiter

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
            rate_limits=map(message_of, page), next_page_token=page[-1].subject if goes_on else ""
        )

    async def get(self, request: policy_pb2.GetRateLimitRequest) -> policy_pb2.GetRateLimitResponse:
        """Raises:
        InvalidArgument: there can be no such subject.
        """
        subject = parse_subject(request.subject)
        rule = rule_of(subject, await self._store.find_rules([subject, kind_subject(subject)]))
        usage = await self._limiter.usage(subject)
        return policy_pb2.GetRateLimitResponse(rate_limit=message_of(rule), usage=usage)

    async def set(
        self, actor: Holder, request: policy_pb2.SetRateLimitRequest
    ) -> policy_pb2.SetRateLimitResponse:
        """Raises:
        InvalidArgument: a field is wrong.
        Aborted: the limits were changed meanwhile.
        """
        rule = await self.put(actor, parse_rate_limit(request.rate_limit))
        return policy_pb2.SetRateLimitResponse(rate_limit=message_of(rule))

    async def put(self, actor: Holder, given: RateLimit) -> RateLimit:
        """Write limits, and return them with their new version.

        Args:
            given: with version 0, whatever is stored is replaced.

        Raises:
            Aborted: the stored ones have another version.
        """
        rule = await self._store.set_rule(given)
        if rule is None:
            raise _changed(given.subject)
        log.info("limits set", subject=rule.subject, by=actor.key_id, **rule.limits)
        return rule

    async def delete(self, actor: Holder, request: policy_pb2.DeleteRateLimitRequest) -> RateLimit:
        """Returns the limits as they were.

        Raises:
            InvalidArgument: there can be no such subject.
            NotFound: it has no limits of its own.
            Aborted: they were changed meanwhile.
        """
        subject = parse_subject(request.subject)
        old = next(iter(await self._store.find_rules([subject])), None)
        if old is None:
            raise NotFound(f"{subject} has no limits of its own", reason="UNKNOWN_RATE_LIMIT")
        is_asked_for = request.version in (0, old.version)
        if not (is_asked_for and await self._store.delete_rule(subject, version=old.version)):
            raise _changed(subject)
        log.info("limits deleted", subject=subject, by=actor.key_id)
        return old

    async def forget(self, subject: str) -> None:
        """Remove the limits of a subject that is gone, if it has any of its own."""
        await self._store.delete_rule(subject)


def _changed(subject: str) -> Aborted:
    return Aborted(
        f"the limits of {subject} were changed meanwhile: read them again", reason="VERSION_MISMATCH"
    )


def parse_rate_limit(given: policy_pb2.RateLimit, *, field: str = "rate_limit") -> RateLimit:
    """Raises:
    InvalidArgument: a field is wrong.
    """
    subject = parse_subject(given.subject, field=f"{field}.subject")
    limits = parse_limits({name: getattr(given, name) for name in NAMES}, field=field)
    return RateLimit(subject, limits, given.version)


def message_of(rule: RateLimit) -> policy_pb2.RateLimit:
    return policy_pb2.RateLimit(subject=rule.subject, version=rule.version, **rule.limits)
