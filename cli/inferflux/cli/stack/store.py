"""Check that nats-server still writes to its disk, and whether a restart would heal it.

A stream keeps its first write error for as long as the server runs, also when the disk has space again.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path

from .servers import LOOPBACK

_ANSWER_LIMIT_S = 2.0
# A proxy that the environment names cannot reach this machine's loopback.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_TRIAL = b"\0" * (1 << 20)
# What nats-server's /healthz says of a stream whose file store does not write any more.
_WRITE_ERROR = "write error"


def write_error(monitor_port: int) -> str:
    """Why a stream cannot be written, as /healthz says it; "" if it can, or without an answer."""
    try:
        with _DIRECT.open(f"http://{LOOPBACK}:{monitor_port}/healthz", timeout=_ANSWER_LIMIT_S):
            return ""
    except urllib.error.HTTPError as answer:
        with answer:
            return error_in(answer.code, answer.read())
    except OSError:
        return ""


def error_in(status: int, body: bytes) -> str:
    """The write error that an answer of /healthz names; "" when it names none."""
    if status != HTTPStatus.SERVICE_UNAVAILABLE:
        return ""
    try:
        said = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ""
    return said if _WRITE_ERROR in said else ""


def takes_writes(directory: Path) -> bool:
    """True if a megabyte can be written and synced there. It is deleted afterwards."""
    try:
        with tempfile.TemporaryFile(dir=directory, prefix="space-", buffering=0) as trial:
            is_whole = trial.write(_TRIAL) == len(_TRIAL)
            os.fsync(trial.fileno())
    except OSError:
        return False
    return is_whole
