"""Check of a cancel notice, for every service that receives one. Pure."""

from __future__ import annotations

from inferflux.common.contract import checks, subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.v1 import scheduler_pb2


def parse_cancel(data: bytes, subject: str) -> scheduler_pb2.CancelNotice:
    """Decode a cancel notice that came on `subject`, which is what a sender's rights are checked against.

    Raises:
        InvalidArgument: naming the field; it cannot be decoded, names no request that can be, or another than
            the subject does.
    """
    notice = checks.decode(scheduler_pb2.CancelNotice, data)
    checks.check_token(notice.tenant, "tenant")
    checks.check_token(notice.request_id, "request_id")
    if notice.attempt_id:
        checks.check_token(notice.attempt_id, "attempt_id")
    if subject != subjects.cancel(notice.tenant, notice.request_id):
        raise InvalidArgument("another request than the subject's", field="request_id")
    return notice
