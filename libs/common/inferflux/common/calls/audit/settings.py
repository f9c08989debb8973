"""Settings of the audit trail of a service that writes one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, SecretStr

from inferflux.common.process.settings import ByteCount, OptionalPath, ServiceSettings, setting

_MIN_KEY_LENGTH = 16
DIR_VARIABLE = "INFERFLUX_AUDIT_DIR"


def _long_enough(secret: SecretStr) -> SecretStr:
    if 0 < len(secret.get_secret_value()) < _MIN_KEY_LENGTH:
        raise ValueError(f"must have {_MIN_KEY_LENGTH} characters or more")
    return secret


class AuditSettings(ServiceSettings):
    """Settings of a service that writes an [audit trail](policy.md#audit)."""

    audit_dir: OptionalPath = setting(
        None,
        "folder of the [audit trail](policy.md#audit); processes may share it. "
        "Empty: lines go to stdout, in a chain that begins with the process",
        variable=DIR_VARIABLE,
    )
    audit_key: Annotated[SecretStr, AfterValidator(_long_enough)] = setting(
        SecretStr(""),
        "secret of the audit trail's hashes, 16 characters or more. Empty: one is made and kept in "
        "`INFERFLUX_AUDIT_DIR`",
        variable="INFERFLUX_AUDIT_KEY",
    )
    audit_on_failure: Literal["count", "refuse"] = setting(
        "count",
        "while lines cannot be written, as on a full disk: `count` those that are lost, or `refuse` calls",
        variable="INFERFLUX_AUDIT_ON_FAILURE",
    )
    audit_debug_mode: bool = setting(
        False,
        "whether lines have prompts and answers as they are, beside their hashes",
        variable="INFERFLUX_AUDIT_DEBUG_MODE",
    )
    audit_file_bytes: ByteCount = setting(
        64 << 20,
        "size of a file of the audit trail; then, and with each day (UTC), another begins",
        variable="INFERFLUX_AUDIT_FILE_BYTES",
        ge=4096,
        expert=True,
    )
    audit_queue_limit: int = setting(
        16384,
        "audit lines that wait to be written; one more is lost, and counted",
        variable="INFERFLUX_AUDIT_QUEUE_LIMIT",
        ge=2,
        le=1_000_000,
        expert=True,
    )
    audit_sync: bool = setting(
        True,
        "whether audit lines are synchronized to the disk, many at once",
        variable="INFERFLUX_AUDIT_SYNC",
        expert=True,
    )
