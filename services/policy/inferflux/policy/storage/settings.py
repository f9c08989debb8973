"""Settings of policy's storage."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, SecretStr, model_validator

from inferflux.common.process.setting_kinds import OptionalPath
from inferflux.common.process.settings import ServiceSettings, setting

from .file import PATH
from .sealed import PASSPHRASE, TAKES_CLEAR
from .sealing import PASSPHRASE_RULE, parse_passphrases

STORAGE = "INFERFLUX_POLICY_STORAGE"
SQL_URL = "INFERFLUX_POLICY_STORAGE_SQL_URL"


def _check_passphrases(secret: SecretStr) -> SecretStr:
    parse_passphrases(secret.get_secret_value())
    return secret


class StorageSettings(ServiceSettings):
    """Settings of policy's [storage](policy.md#storage)."""

    storage: Literal["redis", "file", "sql"] = setting(
        "redis",
        "where keys, roles, limits and guardrails [are kept](policy.md#storage): `redis`, `file` or `sql`",
        variable=STORAGE,
        ordinary=True,
    )
    storage_path: OptionalPath = setting(
        None,
        "with `file`: the encrypted file. It is made if it is not there",
        variable=PATH,
    )
    storage_passphrase: Annotated[SecretStr, AfterValidator(_check_passphrases)] = setting(
        SecretStr(""),
        "encrypts what is kept: needed with `file`, by choice with `redis` and `sql`. "
        f"{PASSPHRASE_RULE}. Several, comma-separated: the first encrypts, each decrypts, so that "
        "it [can be changed](policy.md#storage)",
        variable=PASSPHRASE,
    )
    storage_takes_clear: bool = setting(
        False,
        "with `redis` or `sql` and a passphrase: take values that are in clear, and encrypt them, for the "
        "[first start with a passphrase](policy.md#storage) alone. Else a start ends there: someone who may "
        "write to the storage could have put them in place of the encrypted ones",
        variable=TAKES_CLEAR,
    )
    storage_sql_url: SecretStr = setting(
        SecretStr(""),
        "with `sql`: the database, such as `postgresql://policy:PASSWORD@db/policy` or "
        "`sqlite:////var/lib/inferflux/policy.db`",
        variable=SQL_URL,
    )

    @model_validator(mode="after")
    def _has_what_its_storage_needs(self) -> Self:
        if self.storage == "file" and self.storage_path is None:
            raise ValueError(f"{STORAGE}=file needs {PATH}")
        if self.storage == "file" and not self.storage_passphrase.get_secret_value():
            raise ValueError(f"{STORAGE}=file needs {PASSPHRASE}")
        if self.storage == "sql" and not self.storage_sql_url.get_secret_value():
            raise ValueError(f"{STORAGE}=sql needs {SQL_URL}")
        return self
