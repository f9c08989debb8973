"""Keys and roles in Redis.

    inferflux:{keys}:key:<sha256>   hash    one API key; for the secret before a rotation, `moved_to` alone,
                                            which expires
    inferflux:{keys}:index          hash    key id -> sha256 of its present secret
    inferflux:{keys}:last_used      hash    key id -> ms since 1970
    inferflux:{keys}:roles          hash    name -> role, as JSON
    inferflux:{keys}:bootstrapped   set     marks of `KeyStore.bootstrap` ever written at a start

The braces keep together, in a Redis Cluster, what one script touches. Calls are one round trip, but for
`all_keys`, `find_by_id`, `find` of a secret before a rotation, and a script's first use after a server start.
Keys that are looked up at the same time share one, and so do roles.
Each round trip ends within `timeout_s`: what cannot be read is refused, never assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from inferflux.common.redis.store import WHOLE_SLOT
from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.decide.roles import BUILTIN, Role
from inferflux.policy.storage.guarded import StoreGuard
from inferflux.policy.storage.last_used import LAST_USED, RedisLastUsed
from inferflux.policy.storage.together import Together

from .replicated import ReplicatedWrites

if TYPE_CHECKING:
    from redis.asyncio import Redis

_Item = TypeVar("_Item")

KEY = "inferflux:{keys}:key:"
INDEX = "inferflux:{keys}:index"
BOOTSTRAPPED = "inferflux:{keys}:bootstrapped"
ROLES = "inferflux:{keys}:roles"
_WHOLE = f"inferflux:{{keys}}:{WHOLE_SLOT}"
_LIST_BATCH = 256
# Keys that one round trip looks up.
_LOOKUPS = 64

# KEYS: index, record. ARGV: key id, digest, field, value, ...
_ADD = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], unpack(ARGV, 3))
"""

# KEYS: index, last used, WHOLE_SLOT. ARGV: record prefix, key id, version. Returns 1 when there was such a
# key.
_REVOKE = """
local digest = redis.call('HGET', KEYS[1], ARGV[2])
if not digest then return 0 end
local was = redis.call('HMGET', ARGV[1] .. digest, 'version', 'previous_digest')
if (was[1] or '1') ~= ARGV[3] then return 0 end
if was[2] then redis.call('DEL', ARGV[1] .. was[2]) end
redis.call('DEL', ARGV[1] .. digest)
redis.call('HDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[2])
return 1
"""

# KEYS: index, WHOLE_SLOT. ARGV: record prefix, key id, version before, old digest, new digest, until when the
# old one is valid (ms, 0: not), field, value, ... of the new record. Returns 1 when the key had that version
# and digest.
_REPLACE = """
local prefix, id, old, new = ARGV[1], ARGV[2], ARGV[4], ARGV[5]
if redis.call('HGET', KEYS[1], id) ~= old then return 0 end
local was = redis.call('HMGET', prefix .. old, 'version', 'previous_digest')
if (was[1] or '1') ~= ARGV[3] then return 0 end
redis.call('DEL', prefix .. old)
redis.call('HSET', prefix .. new, unpack(ARGV, 7))
if old ~= new then
  if was[2] then redis.call('DEL', prefix .. was[2]) end
  redis.call('HSET', KEYS[1], id, new)
  if ARGV[6] ~= '0' then
    redis.call('HSET', prefix .. old, 'moved_to', new)
    redis.call('PEXPIREAT', prefix .. old, ARGV[6])
  end
end
return 1
"""

# KEYS: index, last used. ARGV: key id, ms, ...
_NOTE_USED = """
for i = 1, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
"""

# KEYS: roles. ARGV: name, version before (0: none), role. Returns 1 when the role was of that version.
_PUT_ROLE = """
local was = redis.call('HGET', KEYS[1], ARGV[1])
local version = was and cjson.decode(was)['version'] or 0
if version ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""

# KEYS: roles. ARGV: name, version. Returns 1 when there was a role of that version.
_DELETE_ROLE = """
local was = redis.call('HGET', KEYS[1], ARGV[1])
if not was or cjson.decode(was)['version'] ~= tonumber(ARGV[2]) then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
"""

# KEYS: index, record, bootstrapped. ARGV: mark, only if empty (1|0), key id, digest, field, value, ...
# Returns 1 when the key was written: only at the first time of its mark, so a revoked key stays revoked.
_BOOTSTRAP = """
if redis.call('SADD', KEYS[3], ARGV[1]) == 0 then return 0 end
if ARGV[2] == '1' and redis.call('HLEN', KEYS[1]) > 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[2], unpack(ARGV, 5))
return 1
"""


class RedisKeys:
    """A `KeyStore`."""

    def __init__(self, redis: Redis, guard: StoreGuard) -> None:
        self._redis = redis
        self._guard = guard
        self._writes = ReplicatedWrites(redis, guard)
        self._last_used = RedisLastUsed(redis, guard)
        self._add = redis.register_script(_ADD)
        self._revoke = redis.register_script(_REVOKE)
        self._bootstrap = redis.register_script(_BOOTSTRAP)
        self._replace = redis.register_script(_REPLACE)
        self._note_used = redis.register_script(_NOTE_USED)
        self._put_role = redis.register_script(_PUT_ROLE)
        self._delete_role = redis.register_script(_DELETE_ROLE)
        self._lookups = Together(self._all_fields, most=_LOOKUPS)
        self._roles = Together(self._find_own_roles, most=_LOOKUPS)

    async def find(self, digest: str) -> ApiKeyRecord | None:
        """The key that has a secret of this digest: the gateway's hot path."""
        fields = await self._fields(digest)
        if (moved_to := fields.get(b"moved_to")) is not None:
            digest = moved_to.decode()
            fields = await self._fields(digest)
        return ApiKeyRecord.from_fields(digest, fields) if fields else None

    async def find_by_id(self, key_id: str) -> ApiKeyRecord | None:
        async with self._guard.limit():
            digest = cast("bytes | None", await self._redis.hget(INDEX, key_id))
        return None if digest is None else await self.find(digest.decode())

    async def _fields(self, digest: str) -> dict[bytes, bytes]:
        """Of a record: it is not to be changed, as others may get the same."""
        return await self._lookups.answer(digest)

    async def _all_fields(self, digests: Sequence[str]) -> list[dict[bytes, bytes]]:
        """Of each of these records; a burst often asks for the same one."""
        distinct = list(dict.fromkeys(digests))
        rows = dict(zip(distinct, await self._rows(distinct), strict=True))
        return [rows[digest] for digest in digests]

    async def _rows(self, digests: Sequence[str]) -> list[dict[bytes, bytes]]:
        async with self._guard.limit():
            if len(digests) == 1:
                return [cast("dict[bytes, bytes]", await self._redis.hgetall(KEY + digests[0]))]
            pipeline = self._redis.pipeline(transaction=False)
            for digest in digests:
                pipeline.hgetall(KEY + digest)
            return cast("list[dict[bytes, bytes]]", await pipeline.execute())

    async def add(self, record: ApiKeyRecord) -> None:
        async with self._guard.limit():
            await self._add([INDEX, KEY + record.digest], _written(record))

    async def all_keys(self, *, tenant: str = "") -> list[ApiKeyRecord]:
        """Every key, or every key of a tenant, oldest first."""
        async with self._guard.limit():
            index = cast("dict[bytes, bytes]", await self._redis.hgetall(INDEX))
        records: list[ApiKeyRecord] = []
        for digests in _batched([d.decode() for d in index.values()], _LIST_BATCH):
            records += await self._find_all(digests)
        wanted = (r for r in records if not tenant or r.tenant == tenant)
        return sorted(wanted, key=lambda r: (r.created_unix_ms, r.key_id))

    async def _find_all(self, digests: Sequence[str]) -> list[ApiKeyRecord]:
        """The records of those keys that are still there."""
        rows = await self._rows(digests)
        return [ApiKeyRecord.from_fields(d, row) for d, row in zip(digests, rows, strict=True) if row]

    async def revoke(self, key_id: str, *, version: int) -> bool:
        """Remove a key; False unless there is one of that id and version."""
        return bool(await self._writes.run(self._revoke, [INDEX, LAST_USED, _WHOLE], [KEY, key_id, version]))

    async def replace(self, record: ApiKeyRecord) -> bool:
        """Write a changed key; False unless the stored one is of the version before."""
        return await self.rotate(record, old=record)

    async def rotate(self, record: ApiKeyRecord, *, old: ApiKeyRecord) -> bool:
        """Write a key with a new digest; False unless the stored one has the old one and version before."""
        flat = [x for pair in record.fields().items() for x in pair]
        until = record.previous_until_unix_ms
        head: list[str | int] = [KEY, record.key_id, record.version - 1, old.digest, record.digest, until]
        return bool(await self._writes.run(self._replace, [INDEX, _WHOLE], [*head, *flat]))

    async def note_used(self, used_unix_ms: Mapping[str, int]) -> None:
        """Say when keys were last used, by key id; those that are gone are left out."""
        for pairs in _batched(list(used_unix_ms.items()), _LIST_BATCH):
            flat: list[str | int] = []
            for key_id, unix_ms in pairs:
                flat += [key_id, unix_ms]
            async with self._guard.limit():
                await self._note_used([INDEX, LAST_USED], flat)

    async def last_used(self) -> dict[str, int]:
        """When keys were last used, by key id, in ms since 1970."""
        return await self._last_used.all()

    async def find_roles(self, names: Collection[str]) -> list[Role]:
        """Those of the roles that there are."""
        found = {name: BUILTIN[name] for name in names if name in BUILTIN}
        if own := [name for name in names if name not in BUILTIN]:
            found |= await self._roles.answer(own)
        return [found[name] for name in names if name in found]

    async def _find_own_roles(self, asked: Sequence[Sequence[str]]) -> list[dict[str, Role]]:
        """Of each of these lists of names, the roles that there are."""
        names = list(dict.fromkeys(name for each in asked for name in each))
        async with self._guard.limit():
            rows = cast("list[bytes | None]", await self._redis.hmget(ROLES, names))
        found = {n: Role.from_json(n, row) for n, row in zip(names, rows, strict=True) if row}
        return [{name: found[name] for name in each if name in found} for each in asked]

    async def all_roles(self) -> list[Role]:
        """Those that every InferFlux has, then the others by name."""
        async with self._guard.limit():
            rows = cast("dict[bytes, bytes]", await self._redis.hgetall(ROLES))
        own = [Role.from_json(name.decode(), text) for name, text in rows.items()]
        return [*BUILTIN.values(), *sorted(own, key=lambda role: role.name)]

    async def put_role(self, role: Role) -> bool:
        """Write a new or changed role; False unless the stored one is of the version before."""
        arguments: list[str | int] = [role.name, role.version - 1, role.to_json()]
        return bool(await self._writes.run(self._put_role, [ROLES], arguments))

    async def delete_role(self, name: str, *, version: int) -> bool:
        """Remove a role; False unless there is one of that name and version."""
        return bool(await self._writes.run(self._delete_role, [ROLES], [name, version]))

    async def is_bootstrapped(self, mark: str) -> bool:
        """Whether `bootstrap` was ever called with this mark on the store as it is now."""
        async with self._guard.limit():
            return bool(await self._redis.sismember(BOOTSTRAPPED, mark))

    async def bootstrap(self, record: ApiKeyRecord, *, mark: str, only_if_empty: bool) -> bool:
        """Write a key unless its mark was seen before; False if it was not written."""
        keys = [INDEX, KEY + record.digest, BOOTSTRAPPED]
        async with self._guard.limit():
            return bool(await self._bootstrap(keys, [mark, int(only_if_empty), *_written(record)]))


def _written(record: ApiKeyRecord) -> list[str]:
    return [record.key_id, record.digest, *(x for pair in record.fields().items() for x in pair)]


def _batched(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[i : i + size] for i in range(0, len(items), size))
