"""Opening of this process's audit trail, from its settings."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process import logs
from inferflux.common.process.tasks import Background

from .chain import AuditKeys
from .files import ChainFiles, FolderInUse, made_key
from .settings import DIR_VARIABLE, AuditSettings
from .stream_sink import StreamSink
from .writer import AuditTrail, Sink

log = logs.get()

_STDOUT = 1
# At the end, for lines that wait to be written.
_CLOSE_LIMIT_S = 1.0


@asynccontextmanager
async def running_trail(settings: AuditSettings, service: str) -> AsyncIterator[AuditTrail]:
    """The audit trail of this process, and the task that writes it.

    Raises:
        InvalidArgument: its folder cannot be used; names the variable.
    """
    trail = _opened(settings, service)
    task = Background().start(trail.run())
    try:
        yield trail
    finally:
        await trail.close(task, _CLOSE_LIMIT_S)


def _opened(settings: AuditSettings, service: str) -> AuditTrail:
    """The audit trail of this process.

    Raises:
        InvalidArgument: its folder cannot be used; names the variable.
    """
    keys, sink = _sink(settings, service)
    if settings.audit_debug_mode:
        log.warning("audit lines have prompts and answers as they are", variable="INFERFLUX_AUDIT_DEBUG_MODE")
    return AuditTrail(
        sink,
        service=service,
        text_key=keys.texts,
        keeps_raw=settings.audit_debug_mode,
        refuses=settings.audit_on_failure == "refuse",
    )


def _sink(settings: AuditSettings, service: str) -> tuple[AuditKeys, Sink]:
    key = settings.audit_key.get_secret_value()
    if settings.audit_dir is None:
        keys = AuditKeys.of(key or secrets.token_urlsafe(32))
        return keys, StreamSink(_STDOUT, keys)
    try:
        return _files(settings.audit_dir, key, service)
    except OSError as error:
        message = f"cannot write the audit trail to {settings.audit_dir} ({DIR_VARIABLE}): {error.strerror}"
        raise InvalidArgument(message, field=DIR_VARIABLE) from None
    except FolderInUse as error:
        raise InvalidArgument(f"{error} ({DIR_VARIABLE})", field=DIR_VARIABLE) from None


def _files(root: Path, key: str, service: str) -> tuple[AuditKeys, Sink]:
    keys = AuditKeys.of(key or made_key(root))
    files = ChainFiles(root, service, keys)
    if "missing_lines" in files.opening:
        log.error("audit lines are missing", chain=str(files.folder), lines=files.opening["missing_lines"])
    log.info("the audit trail goes on", chain=str(files.folder), seq=files.head.seq, head=files.head.hash)
    return keys, files
