"""Checks of notices about a request: that it is cancelled, and that tokens of it were lost. Pure."""

from __future__ import annotations

from collections.abc import Callable

from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import scheduler_pb2, tokens_pb2


def parse_cancel(data: bytes, subject: str) -> scheduler_pb2.CancelNotice:
    """Decode a cancel notice that came on `subject`, which is what a sender's rights are checked against.

    Raises:
        InvalidArgument: naming the field; it cannot be decoded, names no request that can be, or another than
            the subject does.
    """
    notice = checks.decode(scheduler_pb2.CancelNotice, data)
    _check_request(notice, subject, subjects.cancel)
    if notice.attempt_id:
        checks.check_token(notice.attempt_id, "attempt_id")
    return notice


def parse_wanted(data: bytes, subject: str) -> tokens_pb2.TokensWanted:
    """Decode a notice of lost tokens; raises as `parse_cancel`."""
    notice = checks.decode(tokens_pb2.TokensWanted, data)
    _check_request(notice, subject, subjects.wanted)
    return notice


def _check_request(
    notice: scheduler_pb2.CancelNotice | tokens_pb2.TokensWanted, subject: str, of: Callable[[str, str], str]
) -> None:
    checks.check_token(notice.tenant, "tenant")
    checks.check_token(notice.request_id, "request_id")
    if subject != of(notice.tenant, notice.request_id):
        raise InvalidArgument("another request than the subject's", field="request_id")
