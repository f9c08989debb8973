"""Check of a tenant's name. Pure."""

from __future__ import annotations

import re

from inferflux.common.contract.errors import InvalidArgument

_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def parse_tenant(text: str, *, field: str = "tenant") -> str:
    """Raises:
    InvalidArgument: no tenant can have this name.
    """
    if _TENANT.fullmatch(text) is None:
        raise InvalidArgument(
            "a tenant is 1-63 of a-z 0-9 _ -, and starts with a letter or a digit", field=field
        )
    return text
