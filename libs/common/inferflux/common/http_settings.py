"""What can be set about the HTTP client of a service that asks HTTP servers."""

from __future__ import annotations

import ssl
from typing import Annotated

from pydantic import AfterValidator

from inferflux.common.errors import InvalidArgument
from inferflux.common.http_addresses import parse_networks
from inferflux.common.http_client import HttpClient
from inferflux.common.settings import OptionalPath, ServiceSettings, listed, setting

CA_VARIABLE = "INFERFLUX_HTTP_CA"


def _check_networks(value: str) -> str:
    parse_networks(listed(value))
    return value


class HttpClientSettings(ServiceSettings):
    """Settings of a service that asks [HTTP servers](security.md#http-servers-that-services-ask)."""

    http_allowed_networks: Annotated[str, AfterValidator(_check_networks)] = setting(
        "",
        "private networks of [HTTP servers that services ask](security.md#http-servers-that-services-ask), "
        "comma-separated, such as `10.1.0.0/16,127.0.0.1`; without TLS too. Empty: public addresses over TLS "
        "alone",
        variable="INFERFLUX_HTTP_ALLOWED_NETWORKS",
    )
    http_ca: OptionalPath = setting(
        None, "CA of these servers, PEM; unset: the public CAs of the system", variable=CA_VARIABLE
    )

    def http_client(self) -> HttpClient:
        """A client that is to be closed.

        Raises:
            InvalidArgument: the CA cannot be used.
        """
        try:
            tls = ssl.create_default_context(cafile=self.http_ca)
        except (OSError, ValueError) as error:
            message = f"{CA_VARIABLE}: cannot use {self.http_ca}: {error}"
            raise InvalidArgument(message, field=CA_VARIABLE) from None
        return HttpClient(allowed_networks=parse_networks(listed(self.http_allowed_networks)), tls=tls)
