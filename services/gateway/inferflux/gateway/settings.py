"""Settings of the gateway: `INFERFLUX_GATEWAY_...`, beside those that every service shares."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Self

from pydantic import AfterValidator, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from inferflux.common.calls.audit.settings import AuditSettings
from inferflux.common.contract.requests.images import MAX_IMAGES
from inferflux.common.http.http_addresses import parse_networks
from inferflux.common.http.http_client import HttpClient
from inferflux.common.http.http_settings import check_networks
from inferflux.common.process.setting_kinds import (
    ByteCount,
    ListenAddress,
    OptionalListenAddress,
    OptionalPath,
    OptionalSubjectToken,
    TargetAddresses,
    listed,
)
from inferflux.common.process.settings import setting
from inferflux.common.process.tls import ServerTls, TlsFiles

from .answers.store import AnswerLimits
from .images.decoding import ImageLimits
from .tokenizer.model_tokenizer import TokenizerLimits

_IMAGES = ImageLimits()
_TOKENIZERS = TokenizerLimits()


class GatewaySettings(AuditSettings):
    """Settings of one gateway process."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_GATEWAY_")

    listen: ListenAddress = setting(
        "127.0.0.1:50051", "where clients call; port 0 takes a free one", ordinary=True
    )
    config: OptionalPath = setting(
        None,
        "a YAML file whose `aliases` [split](models.md#splitting-an-alias) requests over several models; the "
        "same one as of workers, and the same for every gateway",
        variable="INFERFLUX_CONFIG",
        ordinary=True,
    )
    http_listen: OptionalListenAddress = setting(
        "",
        "where clients call over [HTTP](http.md); port 0 takes a free one; empty serves none",
        ordinary=True,
    )
    any_model: bool = setting(
        False,
        "over HTTP a name that no model, alias or adapter has stands for the only model that is served; a "
        "request that names none means the default or only model in any case",
    )
    http_cors_origins: str = setting(
        "*",
        "pages that may call over HTTP from a browser, comma-separated; `*`: any; empty: none",
    )
    http_trusted_proxies: str = setting(
        "",
        "addresses or networks, comma-separated, whose `x-forwarded-for` and `x-forwarded-proto` say who "
        "calls over HTTP; empty: of none",
    )
    front_tls_cert: OptionalPath = setting(
        None,
        "certificate that clients see, PEM, where it is another than `INFERFLUX_TLS_CERT`",
        variable="INFERFLUX_GATEWAY_TLS_CERT",
    )
    front_tls_key: OptionalPath = setting(
        None, "its key, PEM, without a password", variable="INFERFLUX_GATEWAY_TLS_KEY"
    )
    front_tls_client_ca: OptionalPath = setting(
        None,
        "CA of the certificates that clients must show beside their keys (mutual TLS), PEM; "
        "unset: none is asked for",
        variable="INFERFLUX_GATEWAY_TLS_CLIENT_CA",
    )
    zone: OptionalSubjectToken = setting(
        "",
        "the [zone](fleet.md#zones) that it is in: its requests go to workers there while these are not much "
        "busier; empty: it is not known",
        variable="INFERFLUX_ZONE",
    )
    policy_address: TargetAddresses = setting(
        "127.0.0.1:50052",
        "host:port of policy. [Several processes](fleet.md#several-policy-processes) are called in turn: "
        "those that the name means, or IPv4 addresses with ports, comma-separated, without TLS",
        variable="INFERFLUX_POLICY_ADDRESS",
        ordinary=True,
    )
    policy_timeout_s: float = setting(2.0, "longest wait for one answer of policy", gt=0, le=60)
    drain_notice_s: float = setting(
        2.0,
        "a gateway that ends says NOT_SERVING for this long, while streams run, before it closes its port "
        "and sends clients away (GOAWAY): longer than a load balancer takes between two looks",
        ge=0,
        le=600,
    )
    max_streams: int = setting(
        2048, "token streams at the same time; one more is refused", ge=1, le=100_000, ordinary=True
    )
    max_streams_per_tenant: int = setting(
        0,
        "token streams of a tenant at the same time. 0: beside others no more than are left free; "
        "a tenant alone has all but a sixteenth",
        ge=0,
        le=100_000,
    )
    max_resume_window_s: int = setting(
        300,
        "longest resume window that a request may ask for; the replay stream should keep tokens for as long",
        ge=0,
        le=86_400,
    )
    # gRPC itself refuses messages above 16 MiB.
    max_text_bytes: int = setting(4 << 20, "bytes of all texts of one request together", ge=1, le=15 << 20)
    needs_model: bool = setting(
        True,
        "whether the gateway is [ready](operations.md#health) only while a model is, or can be loaded by a "
        "request; `false` has it ready without any",
    )

    answer_cache_bytes: ByteCount = setting(
        0,
        "Redis memory for the [answer cache](cache-design.md#the-answer-cache), of all tenants, such as "
        "`256MB`; 0: no answer is kept",
        ge=0,
        ordinary=True,
    )
    answer_cache_tenant_bytes: ByteCount = setting(
        0,
        "Redis memory of a tenant's answers in the answer cache. 0: all of it; the tenant with most of it "
        "loses answers first",
        ge=0,
    )
    answer_cache_lifetime_s: float = setting(
        3600.0,
        "how long an answer is kept after it was last used",
        ge=1,
        le=30 * 86_400,
    )
    answer_cache_wait_s: float = setting(
        0.02,
        "longest wait for a look-up in the answer cache; then the answer is computed",
        gt=0,
        le=1,
    )

    tokenizer_processes: int = setting(
        _TOKENIZERS.processes,
        "tokenizer processes at the same time, one for each model; "
        "for one more, the idle one that was asked least recently ends",
        ge=1,
        le=1024,
    )

    max_images: int = setting(
        _IMAGES.count, "[images and sounds](images.md) of one request", ge=1, le=MAX_IMAGES
    )
    max_image_bytes: ByteCount = setting(
        _IMAGES.file_bytes, "bytes of the file of an image", ge=1, le=64 << 20
    )
    max_image_pixels: int = setting(
        _IMAGES.pixels,
        "pixels of an image; more are refused before it is decoded",
        ge=1,
        le=200_000_000,
    )
    max_audio_bytes: ByteCount = setting(
        _IMAGES.sound_bytes,
        "bytes of the file of a [sound](images.md#sounds)",
        ge=1,
        le=64 << 20,
    )
    max_audio_s: int = setting(_IMAGES.sound_s, "seconds of a sound", ge=1, le=300)
    image_urls: bool = setting(
        True,
        "fetch images that requests name by URL; if not, only those that requests hold are taken",
    )
    image_networks: Annotated[str, AfterValidator(check_networks)] = setting(
        "",
        "private networks that images may be fetched from, by any client that names one, comma-separated; "
        "without TLS too. Empty: public addresses over TLS alone",
    )

    @field_validator("http_trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for part in listed(value):
            try:
                ipaddress.ip_network(part, strict=False)
            except ValueError:
                raise ValueError(f"{part!r} is neither an address nor a network") from None
        return value

    @model_validator(mode="after")
    def _checks_one_name_of_policy(self) -> Self:
        if self.tls_ca is not None and len(listed(self.policy_address)) > 1:
            raise ValueError("INFERFLUX_POLICY_ADDRESS: with INFERFLUX_TLS_CA one name, which is checked")
        return self

    @model_validator(mode="after")
    def _has_front_cert_and_key(self) -> Self:
        if (self.front_tls_cert is None) != (self.front_tls_key is None):
            raise ValueError("INFERFLUX_GATEWAY_TLS_CERT and INFERFLUX_GATEWAY_TLS_KEY go together")
        if self.front_tls_client_ca is not None and self.front_tls_cert is None and self.tls_cert is None:
            raise ValueError("INFERFLUX_GATEWAY_TLS_CLIENT_CA needs a certificate")
        return self

    @property
    def server_tls(self) -> ServerTls | None:
        """Clients prove themselves with keys, so the CA of services counts for nothing here."""
        ca = self.front_tls_client_ca
        if self.front_tls_cert is not None:
            variable = "INFERFLUX_GATEWAY_TLS_CERT"
            return ServerTls(TlsFiles(self.front_tls_cert, self.front_tls_key, ca, variable=variable))
        if self.tls_cert is None:
            return None
        return ServerTls(TlsFiles(self.tls_cert, self.tls_key, ca))

    @property
    def shows_certificate(self) -> bool:
        """Return whether policy, if it asks for a certificate, sees this gateway's."""
        return self.tls_ca is not None and self.tls_cert is not None

    @property
    def trusted_proxies(self) -> list[str]:
        return listed(self.http_trusted_proxies)

    @property
    def cors_origins(self) -> list[str]:
        return listed(self.http_cors_origins)

    @property
    def tokenizer_limits(self) -> TokenizerLimits:
        return TokenizerLimits(processes=self.tokenizer_processes)

    def image_client(self) -> HttpClient | None:
        """Return the client that fetches images, to be closed; None where none are fetched."""
        if not self.image_urls:
            return None
        return HttpClient(
            allowed_networks=parse_networks(listed(self.image_networks)),
            networks_variable="INFERFLUX_GATEWAY_IMAGE_NETWORKS",
        )

    @property
    def image_limits(self) -> ImageLimits:
        return ImageLimits(
            count=self.max_images,
            file_bytes=self.max_image_bytes,
            pixels=self.max_image_pixels,
            sound_bytes=self.max_audio_bytes,
            sound_s=self.max_audio_s,
        )

    @property
    def answer_limits(self) -> AnswerLimits:
        return AnswerLimits(
            max_bytes=self.answer_cache_bytes,
            tenant_bytes=self.answer_cache_tenant_bytes or self.answer_cache_bytes,
            lifetime_s=self.answer_cache_lifetime_s,
        )
