"""Settings of the HTTP client of a service that asks HTTP servers."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from inferflux.common.process.setting_kinds import OptionalPath, listed
from inferflux.common.process.settings import ServiceSettings, setting
from inferflux.common.process.tls import ClientTls, TlsFiles

from .http_addresses import parse_networks
from .http_client import ALLOWED_NETWORKS, HttpClient
from .http_proxies import Proxies

CA_VARIABLE = "INFERFLUX_HTTP_CA"


def check_networks(value: str) -> str:
    """Raises:
    ValueError: it is no list of networks.
    """
    parse_networks(listed(value))
    return value


class HttpClientSettings(ServiceSettings):
    """Settings of a service that asks [HTTP servers](security.md#http-servers-that-services-ask)."""

    http_allowed_networks: Annotated[str, AfterValidator(check_networks)] = setting(
        "",
        "private networks of [HTTP servers that services ask](security.md#http-servers-that-services-ask), "
        "comma-separated, such as `10.1.0.0/16,127.0.0.1`; without TLS too. Empty: public addresses over TLS "
        "alone",
        variable=ALLOWED_NETWORKS,
    )
    http_ca: OptionalPath = setting(
        None,
        "CA of these servers, PEM; unset: the public CAs of the system",
        variable=CA_VARIABLE,
    )

    def http_client(self, proxies: Proxies | None = None) -> HttpClient:
        """A client that is to be closed.

        Args:
            proxies: see `HttpClient`.

        Raises:
            InvalidArgument: the CA cannot be used.
        """
        tls = ClientTls(TlsFiles(ca=self.http_ca, variable=CA_VARIABLE))
        networks = parse_networks(listed(self.http_allowed_networks))
        return HttpClient(allowed_networks=networks, tls=tls.context, proxies=proxies)
