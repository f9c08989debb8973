"""Parts that all URLs of Redis have, and the errors of a bad one. Pure.

Messages have nothing of a URL but names of options: all else may be a part of a password that was not
escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote_plus

_OF_ONE = ("redis", "rediss")
OF_SENTINELS = ("redis+sentinel", "rediss+sentinel")
OF_CLUSTER = ("redis-cluster", "rediss-cluster")
_SCHEMES = (*_OF_ONE, *OF_SENTINELS, *OF_CLUSTER, "unix")
_ONE_FORM = "redis://[user:password@]host:port[/db]"
_PORT = 6379
_ESCAPED = "in a user or a password, / ? # @ : % are written %2F %3F %23 %40 %3A %25"
_CREDENTIALS = frozenset({"username", "password", "sentinel_username", "sentinel_password", "ssl_password"})
_OPTIONS = frozenset(
    {
        "client_name",
        "db",
        "health_check_interval",
        "max_connections",
        "password",
        "protocol",
        "socket_connect_timeout",
        "socket_keepalive",
        "socket_timeout",
        "timeout",
        "username",
    }
)
_TLS_OPTIONS = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)
_SENTINEL_OPTIONS = frozenset({"sentinel_password", "sentinel_username"})


class BadRedisUrl(Exception):
    """A URL that cannot be used; the text has nothing of its passwords."""


def check(url: str) -> None:
    """Refuse what no kind of URL may have: another scheme, characters that must be escaped, unknown options.
    Of a URL of one server, also refuse a wrong address or database.

    Raises:
        BadRedisUrl: says which part is wrong.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        raise BadRedisUrl(_unknown_scheme(scheme if separator else ""))
    if "#" in rest:
        raise BadRedisUrl("it has a #, which is written %23")
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    options = [option.partition("=")[::2] for option in query.split("&") if option]
    is_split = any("@" in name or ("@" in value and name not in _CREDENTIALS) for name, value in options)
    if is_split or ("@" in path and scheme != "unix"):
        raise BadRedisUrl(
            f"there is an @ behind the first / or ?, so one of these is not escaped: {_ESCAPED}"
        )
    _check_options(scheme, [unquote_plus(name) for name, _ in options])
    if scheme in _OF_ONE:
        _check_one(authority, path)


def hosts_and_ports(text: str, default_port: int, *, what: str, form: str) -> tuple[tuple[str, int], ...]:
    """The servers of a URL that names several, comma-separated.

    Raises:
        BadRedisUrl: one has no host, or no port that is one.
    """
    return tuple(_host_and_port(each.strip(), default_port, what=what, form=form) for each in text.split(","))


def _host_and_port(text: str, default_port: int, *, what: str, form: str) -> tuple[str, int]:
    is_bracketed = text.startswith("[")
    host, _, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", str(default_port))
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= 65535
    is_host = (host[-1:] == "]" and "]" not in host[1:-1]) if is_bracketed else not set(host) & set(":[] ")
    name = host.removeprefix("[").removesuffix("]")
    if not name or not is_host or not is_port:
        raise BadRedisUrl(f"{what} is not host:port: {form}; {_ESCAPED}")
    return name, int(port)


def _unknown_scheme(scheme: str) -> str:
    if "sentinel" in scheme:
        return "sentinels are named by {}:// or, with TLS, {}://".format(*OF_SENTINELS)
    if "cluster" in scheme:
        return "a Redis Cluster is named by {}:// or, with TLS, {}://".format(*OF_CLUSTER)
    begins = ", ".join(f"{name}://" for name in _SCHEMES[:-1])
    return f"it must begin with {begins} or {_SCHEMES[-1]}://"


def _check_options(scheme: str, names: Iterable[str]) -> None:
    allowed = _OPTIONS - ({"db"} if scheme in OF_CLUSTER else set())
    allowed |= _TLS_OPTIONS if scheme.startswith("rediss") else set()
    allowed |= _SENTINEL_OPTIONS if scheme in OF_SENTINELS else set()
    for name in names:
        if name not in allowed:
            why = "" if name not in _TLS_OPTIONS else " without TLS, which rediss asks for"
            raise BadRedisUrl(
                f"{name} is no option of {scheme}://{why}: there are {', '.join(sorted(allowed))}"
            )


def _check_one(authority: str, path: str) -> None:
    """The server and the database of a URL that names one. Without a host it is this machine."""
    host = authority.rpartition("@")[2]
    if "," in host:
        several = "several are behind sentinels (redis+sentinel://) or a cluster (redis-cluster://)"
        raise BadRedisUrl(f"it names one server: {several}; {_ESCAPED}")
    if host.removeprefix(":"):
        _host_and_port(
            host if host[0] != ":" else f"localhost{host}", _PORT, what="the server", form=_ONE_FORM
        )
    if path and not (path.isascii() and path.isdecimal()):
        raise BadRedisUrl(f"after the server comes the number of a database: {_ONE_FORM}; {_ESCAPED}")
