"""The storage that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from inferflux.common.contract.errors import InvalidArgument

from .file import PATH, FileTable
from .guarded import StoreGuard
from .interface import Storage
from .last_used import RedisLastUsed
from .redis.earlier import RedisTableOverEarlier
from .sealed import PASSPHRASE, SealedTable
from .sealing import COST, Keyring, parse_passphrases
from .settings import STORAGE, StorageSettings
from .table import Table
from .tables.storage import TableStorage

if TYPE_CHECKING:
    from redis.asyncio import Redis


def storage_of(
    settings: StorageSettings,
    redis: Redis,
    guard: StoreGuard,
    *,
    timeout_s: float,
    now_ms: Callable[[], int],
    scrypt_cost: int = COST,
) -> Storage:
    """The storage; nothing is asked of it yet.

    Args:
        timeout_s: longest wait for an answer of it.
        now_ms: the time, in ms since 1970.
        scrypt_cost: of new keys.

    Raises:
        InvalidArgument: it cannot be used; the field is the variable to change.
    """
    passphrases = parse_passphrases(settings.storage_passphrase.get_secret_value())
    keyring = Keyring(passphrases, cost=scrypt_cost) if passphrases else None
    table = _table(settings, redis, guard, keyring, timeout_s)
    return TableStorage(table, RedisLastUsed(redis, guard), now_ms=now_ms)


def _table(
    settings: StorageSettings, redis: Redis, guard: StoreGuard, keyring: Keyring | None, timeout_s: float
) -> Table:
    if settings.storage == "file":
        if settings.storage_path is None or keyring is None:
            raise InvalidArgument(f"{STORAGE}=file needs {PATH} and {PASSPHRASE}", field=STORAGE)
        return FileTable(settings.storage_path, keyring, timeout_s=timeout_s)
    table: Table
    if settings.storage == "sql":
        table, name = _sql(settings, timeout_s), "the policy database"
    else:
        table = RedisTableOverEarlier(redis, guard, is_sealed=keyring is not None)
        name = "what policy keeps in Redis"
    return SealedTable(table, keyring, name=name, takes_clear=settings.storage_takes_clear)


def _sql(settings: StorageSettings, timeout_s: float) -> Table:
    try:
        from .sql import SqlTable
    except ModuleNotFoundError as error:
        message = f"{STORAGE}=sql needs {error.name}, which inferflux-policy[sql] installs"
        raise InvalidArgument(message, field=STORAGE) from None
    return SqlTable(settings.storage_sql_url.get_secret_value(), timeout_s=timeout_s)
