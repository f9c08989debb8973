"""Settings of the audit trail of a service that writes one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, SecretStr

from inferflux.common.process.setting_kinds import OptionalPath
from inferflux.common.process.settings import ServiceSettings, setting

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
        ordinary=True,
    )
    audit_key: Annotated[SecretStr, AfterValidator(_long_enough)] = setting(
        SecretStr(""),
        "secret of the audit trail's hashes, 16 characters or more. Empty: one is made and kept in "
        "`INFERFLUX_AUDIT_DIR`",
        variable="INFERFLUX_AUDIT_KEY",
        ordinary=True,
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
