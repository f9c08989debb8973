"""Check of a notice of lost tokens. Pure."""

from __future__ import annotations

from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import tokens_pb2


def parse_wanted(data: bytes, subject: str) -> tokens_pb2.TokensWanted:
    """Decode a notice that came on `subject`, which is what a sender's rights are checked against.

    Raises:
        InvalidArgument: naming the field; it cannot be decoded, names no request that can be, or another than
            the subject does.
    """
    notice = checks.decode(tokens_pb2.TokensWanted, data)
    checks.check_token(notice.tenant, "tenant")
    checks.check_token(notice.request_id, "request_id")
    if subject != subjects.wanted(notice.tenant, notice.request_id):
        raise InvalidArgument("another request than the subject's", field="request_id")
    return notice
