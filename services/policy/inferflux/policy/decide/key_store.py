"""Where keys and roles are kept, as policy asks for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from .keys import ApiKeyRecord
from .roles import Role


class KeyStore(Protocol):
    """Keys by the digest of a secret and by their id, and roles by name.

    What one process writes, all others read within 0.25 s. A change names the version it was made from, and
    is not written where that is no longer the stored one. Every method raises Unavailable when the store does
    not answer in time.
    """

    async def find(self, digest: str) -> ApiKeyRecord | None:
        """The key that has a secret of this digest: its present one, or its last one while that is valid."""
        ...

    async def due_in_s(self) -> float:
        """Seconds until what others have written is read here again; it is read if that is due."""
        ...

    async def find_by_id(self, key_id: str) -> ApiKeyRecord | None: ...

    async def all_keys(self, *, tenant: str = "") -> list[ApiKeyRecord]:
        """Every key, or every key of a tenant, oldest first."""
        ...

    async def add(self, record: ApiKeyRecord) -> None: ...

    async def replace(self, record: ApiKeyRecord) -> bool:
        """Write a changed key; False unless the stored one is of the version before."""
        ...

    async def rotate(self, record: ApiKeyRecord, *, old: ApiKeyRecord) -> bool:
        """Write a key with a new digest; False unless the stored one is as `old`."""
        ...

    async def revoke(self, key_id: str, *, version: int) -> bool:
        """Remove a key and its secrets; False unless there is one of that id and version."""
        ...

    async def note_used(self, used_unix_ms: Mapping[str, int]) -> None:
        """Say when keys were last used, by key id; those that are gone are left out."""
        ...

    async def last_used(self) -> dict[str, int]:
        """When keys were last used, by key id, in ms since 1970."""
        ...

    async def find_roles(self, names: Collection[str]) -> list[Role]:
        """The named roles that there are."""
        ...

    async def all_roles(self) -> list[Role]: ...

    async def put_role(self, role: Role) -> bool:
        """Write a new or changed role; False unless the stored one is of the version before."""
        ...

    async def delete_role(self, name: str, *, version: int) -> bool:
        """Remove a role; False unless there is one of that name and version."""
        ...

    async def is_bootstrapped(self, mark: str) -> bool:
        """True if `bootstrap` was ever called with this mark on the store as it is now."""
        ...

    async def bootstrap(self, record: ApiKeyRecord, *, mark: str, only_if_empty: bool) -> bool:
        """Write a key unless its mark was seen before; False if it was not written.

        Args:
            only_if_empty: and unless the store has keys.
        """
        ...
