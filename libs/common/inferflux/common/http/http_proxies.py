"""The HTTP proxies that an environment names, as curl and pip read it.

`http_proxy`, `https_proxy` and `all_proxy` name them, in small letters or capitals. `no_proxy` names hosts
that need none.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

_SCHEMES = ("http", "https")


class BadProxy(ValueError):
    """The environment names something that is no HTTP proxy."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes:
        origin: scheme, host and port.
        login: user and password for it, if it has one.
    """

    origin: str
    login: tuple[str, str] | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises:
        BadProxy: it is none.
        """
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise BadProxy("a proxy of the environment is no URL") from None
        if parts.scheme not in _SCHEMES or not host:
            raise BadProxy("a proxy of the environment begins with http:// or https:// and a host")
        login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
        port = port or (443 if parts.scheme == "https" else 80)
        return cls(f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}", login)


@dataclass(frozen=True, slots=True)
class Proxies:
    """The proxies by the servers that they lead to.

    Attributes:
        named: the URL of a proxy by scheme, `all` for every one; `no`: hosts that need none.
    """

    named: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_environment(cls) -> Self:
        return cls(urllib.request.getproxies_environment())

    def proxy_to(self, scheme: str, host: str, port: int | None) -> Proxy | None:
        """The proxy through which a server is asked; None: it is asked directly.

        Raises:
            BadProxy: it cannot be used.
        """
        text = self.named.get(scheme) or self.named.get("all")
        place = host if port is None else f"{host}:{port}"
        if not text or urllib.request.proxy_bypass_environment(place, dict(self.named)):  # type: ignore[attr-defined]
            return None
        return Proxy.parse(text)
