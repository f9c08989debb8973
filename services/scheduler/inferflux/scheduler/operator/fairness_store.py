"""Fairness settings that operators have changed, which outlive the scheduler."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Protocol

from inferflux.common.bus.key_value import Entry
from inferflux.common.contract import checks
from inferflux.common.contract.errors import Aborted, InvalidArgument, Unavailable
from inferflux.common.contract.models.admin_limits import check_fairness
from inferflux.common.process import logs
from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.v1 import scheduler_pb2

log = logs.get("scheduler.admin")

_FAIRNESS_KEY = "fairness"
_FIRST_VERSION = 1
# What a change can set.
_NAMES = tuple(field.name for field in fields(FairnessSettings) if field.name != "version")
# Leaders of other models may write the same change at the same time.
_WRITE_ATTEMPTS = 5


class Bucket(Protocol):
    """As `key_value.KeyValueBucket`."""

    async def get(self, key: str) -> Entry | None: ...
    async def create(self, key: str, value: bytes) -> int | None: ...
    async def update(self, key: str, value: bytes, *, revision: int) -> int | None: ...


def applied(settings: FairnessSettings, change: scheduler_pb2.SetFairness) -> FairnessSettings:
    """The settings with what the change sets (pure)."""
    names = [name for name in _NAMES if change.HasField(name)]  # type: ignore[arg-type]
    return replace(settings, version=version_of(change), **{name: getattr(change, name) for name in names})


def merged(
    earlier: scheduler_pb2.SetFairness, change: scheduler_pb2.SetFairness
) -> scheduler_pb2.SetFairness:
    """One change that does what both do, one after the other, with the version of the earlier one (pure)."""
    both = scheduler_pb2.SetFairness()
    if not change.reset:
        both.CopyFrom(earlier)
    both.MergeFrom(change)
    both.ClearField("reset")
    both.version = earlier.version
    return both


def version_of(changes: scheduler_pb2.SetFairness) -> int:
    """The version of settings that were changed so (pure)."""
    return max(_FIRST_VERSION, changes.version)


def check_version(
    kept: scheduler_pb2.SetFairness, change: scheduler_pb2.SetFairness, changes: scheduler_pb2.SetFairness
) -> None:
    """Check that a change which names a version may be made (pure).

    Leaders of several models get one request. The first of them keeps it; the others find it kept already.

    Args:
        kept: all changes so far.
        changes: the same with this one.

    Raises:
        Aborted: another change came first.
    """
    version = version_of(kept)
    is_kept_already = changes == kept and change.version == version - 1
    if change.version not in (0, version) and not is_kept_already:
        message = f"the fairness settings were changed meanwhile, to version {version}: read them again"
        raise Aborted(message, reason="VERSION_MISMATCH")


class FairnessStore:
    """Store of the changes that operators made to the fairness settings, merged into one."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def load(self) -> scheduler_pb2.SetFairness:
        """All changes that hold now, none set when there are none.

        Raises:
            Unavailable, DeadlineExceeded: JetStream does not answer.
        """
        entry = await self._bucket.get(_FAIRNESS_KEY)
        return scheduler_pb2.SetFairness() if entry is None else _decode(entry.value)

    async def add(self, change: scheduler_pb2.SetFairness) -> scheduler_pb2.SetFairness:
        """Keep one more change; returns all that hold from now on.

        Raises:
            Aborted: it names a version, and another change came first.
            Unavailable: it is not kept.
            DeadlineExceeded: it may be kept or not.
        """
        for _attempt in range(_WRITE_ATTEMPTS):
            entry = await self._bucket.get(_FAIRNESS_KEY)
            kept = scheduler_pb2.SetFairness() if entry is None else _decode(entry.value)
            changes = merged(kept, change)
            check_version(kept, change, changes)
            if changes == kept:
                return kept
            changes.version = version_of(kept) + 1
            if await self._write(changes.SerializeToString(deterministic=True), entry) is not None:
                return changes
        raise Unavailable("the fairness settings are being changed by others all the time")

    async def _write(self, value: bytes, over: Entry | None) -> int | None:
        if over is None:
            return await self._bucket.create(_FAIRNESS_KEY, value)
        return await self._bucket.update(_FAIRNESS_KEY, value, revision=over.revision)


def _decode(value: bytes) -> scheduler_pb2.SetFairness:
    try:
        kept = checks.decode(scheduler_pb2.SetFairness, value)
        if kept != scheduler_pb2.SetFairness(version=kept.version):
            check_fairness(kept)
        return kept
    except InvalidArgument:
        log.error("the fairness settings that were kept cannot be read and count as none", size=len(value))
        return scheduler_pb2.SetFairness()
