"""Settings of a worker's role, and of how KV state goes from one worker to another."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from inferflux.common.contract import address
from inferflux.common.http.http_settings import HttpClientSettings
from inferflux.common.process.setting_kinds import OptionalListenAddress
from inferflux.common.process.settings import setting
from inferflux.common.process.tls import ServerTls, TlsFiles

KvTransportName = Literal["auto", "shm", "tcp", "nats", "channel"]
_LOOPBACK = "127.0.0.1:0"


class KvSettings(HttpClientSettings):
    """A worker's part among others: its role, and how they fetch KV state from it."""

    role: Literal["unified", "prefill", "decode"] = setting(
        "unified",
        "what it is meant to compute of requests: `unified`, all; `prefill`, prompts and the first token of "
        "answers; `decode`, answers. Each can do all, and does where the other is missing",
        variable="INFERFLUX_ROLE",
    )
    kv_transport: KvTransportName = setting(
        "auto",
        "how KV state [comes from other workers](cache-design.md#state-from-another-worker): `shm`, through "
        "shared memory; `tcp`; `nats`; `channel`, within one process; `auto`, the first of these that both "
        "ends have",
        variable="INFERFLUX_KV_TRANSPORT",
    )
    kv_insecure: bool = setting(
        False,
        "let `INFERFLUX_KV_LISTEN` be beyond loopback without TLS: KV state tells what prompts say",
        variable="INFERFLUX_KV_INSECURE",
    )
    kv_listen: OptionalListenAddress = setting(
        "",
        "host:port at which other workers fetch KV state over TCP, with "
        "[TLS](security.md#state-between-workers) if `INFERFLUX_TLS_CERT` is set; port 0 is any free one. "
        "Empty: on loopback if `INFERFLUX_ROLE` is not `unified` or `INFERFLUX_KV_TRANSPORT` is `tcp`, else "
        "nowhere",
        variable="INFERFLUX_KV_LISTEN",
    )
    kv_address: OptionalListenAddress = setting(
        "",
        "host:port by which other workers reach `INFERFLUX_KV_LISTEN`; empty: as it listens",
        variable="INFERFLUX_KV_ADDRESS",
    )

    @field_validator("kv_listen")
    @classmethod
    def _is_private(cls, value: str, info: ValidationInfo) -> str:
        is_guarded = info.data.get("tls_cert") is not None or info.data.get("kv_insecure")
        if value and not is_guarded and not _is_loopback(address.split(value, "")[0]):
            raise ValueError("must be on loopback, or INFERFLUX_TLS_CERT set, or INFERFLUX_KV_INSECURE=true")
        return value

    @model_validator(mode="after")
    def _knows_its_callers(self) -> Self:
        if self.kv_server and self.tls_cert is not None and self._callers_ca is None:
            raise ValueError(
                "INFERFLUX_TLS_CLIENT_CA: must be set, or INFERFLUX_TLS_CA, where KV state is served over "
                "TLS: callers show certificates"
            )
        return self

    @property
    def _callers_ca(self) -> Path | None:
        return self.tls_client_ca or self.tls_ca

    @property
    def kv_server_tls(self) -> ServerTls | None:
        """TLS of that server, whose callers show certificates; None for plain text.

        Raises:
            InvalidArgument: a file cannot be used.
        """
        if self.tls_cert is None:
            return None
        return ServerTls(TlsFiles(self.tls_cert, self.tls_key, self._callers_ca))

    @property
    def kv_server(self) -> str:
        """host:port at which it serves KV state over TCP; empty: it does not."""
        if self.kv_transport not in ("auto", "tcp"):
            return ""
        is_wanted = self.role != "unified" or self.kv_transport == "tcp"
        return self.kv_listen or (_LOOPBACK if is_wanted else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
