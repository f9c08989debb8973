"""Settings of every service, from environment variables alone."""

from __future__ import annotations

import difflib
import os
import re
import socket
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    Field,
    JsonValue,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.stream_limits import AUTO, CHUNK_BYTES, StreamLimits

from .gone_settings import refusals
from .setting_kinds import ByteCount, ListenAddress, OptionalPath
from .tls import ServerTls, TlsFiles
from .validation_words import in_plain_words

S = TypeVar("S", bound="ServiceSettings")

_SUITE_PREFIX = "INFERFLUX_"
_STREAMS = StreamLimits()
# How alike a misspelt name is to the right one, by difflib's ratio.
_SLIP = 0.85
_GRPC_URL = re.compile(r"https?://[^/\s]+/?")


def unique_name() -> str:
    """A name for this process among its kind: its host's, and six random hex digits."""
    host = subjects.escape(socket.gethostname()).replace("=", "_")[:48]
    return f"{host}-{uuid.uuid4().hex[:6]}"


ORDINARY: dict[str, JsonValue] = {"ordinary": True}
"""`json_schema_extra` of a setting that many deployments change; the manual lists the others apart."""


def setting(
    default: object,
    description: str,
    *,
    variable: str | None = None,
    ordinary: bool = False,
    **bounds: Any,
) -> Any:
    """A setting with a default.

    Args:
        description: in Markdown, for docs/operations.md.
        variable: its environment variable, where that is not the service's prefix and the field's name.
        ordinary: see `ORDINARY`.
        bounds: what pydantic's `Field` checks: `ge`, `gt`, `le`, `min_length`.
    """
    extra = ORDINARY if ordinary else None
    return Field(
        default, description=description, validation_alias=variable, json_schema_extra=extra, **bounds
    )


LogLevel = Literal["debug", "info", "warning", "error"]
Replicas = Literal["auto", "1", "2", "3", "4", "5"]


# A variable of this name holds the path of a file with the value, for where the variable itself is empty: a
# secret need not be in the environment.
FILE_SUFFIX = "_FILE"


class _Environment(EnvSettingsSource):
    """The environment, and the files that it names.

    JSON that does not parse is left to the field's own check, whose error names the field.
    """

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, is_complex = super().get_field_value(field, field_name)
        prefix = self.settings_cls.model_config.get("env_prefix", "")
        variable = _variable_of(field, field_name, prefix)
        path = os.environ.get(variable + FILE_SUFFIX)
        if not value and path:
            value = _read(path, variable + FILE_SUFFIX)
        return value, key, is_complex

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


class ServiceSettings(BaseSettings):
    """The common part. A service subclasses it and sets its own `env_prefix` for its own fields.

    Descriptions are Markdown: `make docs` writes them into docs/operations.md.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    nats_url: str = setting(
        "nats://127.0.0.1:4222",
        "nats-server, or several, comma-separated. Not used by policy",
        variable="INFERFLUX_NATS_URL",
        min_length=1,
        ordinary=True,
    )
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey, one, [behind sentinels](fleet.md#redis) or [a cluster](fleet.md#a-redis-cluster): "
        "of policy, and of the [prefix index](cache-design.md#the-prefix-index), which workers and "
        "schedulers can do without. Gateways need it for the "
        "[answer cache](cache-design.md#the-answer-cache) alone",
        variable="INFERFLUX_REDIS_URL",
        min_length=1,
        ordinary=True,
    )
    service_key: SecretStr = setting(
        SecretStr(""),
        "a secret of 16 to 256 characters that all services share: with it gateways "
        "[prove themselves](policy.md#services) to policy. Several, comma-separated: the first is sent, "
        "each is accepted. Gateway and policy do not start without one, unless certificates prove the same; "
        "schedulers and workers need none",
        variable="INFERFLUX_SERVICE_KEY",
        ordinary=True,
    )
    tls_cert: OptionalPath = setting(
        None,
        "this process's certificate for [TLS](security.md#tls), PEM: what its servers show, and what it "
        "shows to servers that ask; unset: its servers speak plain text",
        variable="INFERFLUX_TLS_CERT",
        ordinary=True,
    )
    tls_key: OptionalPath = setting(
        None,
        "the key of `INFERFLUX_TLS_CERT`, PEM",
        variable="INFERFLUX_TLS_KEY",
        ordinary=True,
    )
    tls_ca: OptionalPath = setting(
        None,
        "CA of the servers that it calls, PEM. It calls policy over TLS if this is set, NATS at a URL of "
        "`tls://` and Redis at one of `rediss://`; unset: for these, the public CAs of the system",
        variable="INFERFLUX_TLS_CA",
        ordinary=True,
    )
    tls_client_ca: OptionalPath = setting(
        None,
        "CA of the certificates that callers of policy must show (mutual TLS), PEM; unset: none is asked for",
        variable="INFERFLUX_TLS_CLIENT_CA",
    )
    reflection: Literal["auto", "on", "off"] = setting(
        "auto",
        "whether gRPC servers describe their methods (reflection) to callers with the scope `models`; "
        "`auto`: without TLS only",
        variable="INFERFLUX_GRPC_REFLECTION",
    )
    metrics_listen: ListenAddress = setting(
        "127.0.0.1:0",
        "host:port of `/metrics`, `/livez`, `/readyz` and `/healthz`; port 0 takes a free one and logs it",
        variable="INFERFLUX_METRICS_LISTEN",
        ordinary=True,
    )
    log_level: LogLevel = setting(
        "info",
        "the least severe lines that are logged",
        variable="INFERFLUX_LOG_LEVEL",
        ordinary=True,
    )
    log_format: Literal["console", "json"] = setting(
        "console",
        "`console` for people, `json` for machines; both on stderr",
        variable="INFERFLUX_LOG_FORMAT",
        ordinary=True,
    )
    drain_limit_s: float = setting(
        30.0,
        "after SIGTERM, running requests get this long to end",
        variable="INFERFLUX_DRAIN_LIMIT_S",
        ge=0,
        le=3600,
    )
    parent_pid_check: bool = setting(
        False,
        "end with SIGTERM when the parent process dies (Linux)",
        variable="INFERFLUX_EXIT_WITH_PARENT",
    )
    queue_limit: int = setting(
        _STREAMS.queue_limit,
        "jobs the queue holds; one more is refused with RESOURCE_EXHAUSTED",
        variable="INFERFLUX_QUEUE_LIMIT",
        ge=1,
        le=1_000_000,
    )
    tokens_max_age_s: float = setting(
        _STREAMS.tokens_max_age_s,
        "how long token chunks can be replayed",
        variable="INFERFLUX_TOKENS_MAX_AGE_S",
        ge=1,
        le=86400,
    )
    tokens_max_bytes: int = setting(
        _STREAMS.tokens_max_bytes,
        "memory for token chunks in nats-server; the oldest go first",
        variable="INFERFLUX_TOKENS_MAX_BYTES",
        ge=1 << 20,
    )
    nats_replicas: Replicas = setting(
        "auto",
        "servers that keep each stream of JetStream: `auto`, or 1 to 5. `auto` is 3 in a "
        "[cluster](fleet.md#nats), and 1 without",
        variable="INFERFLUX_NATS_REPLICAS",
    )
    nats_tokens_replicas: Replicas = setting(
        "auto",
        "the same for the token chunks of late readers, which are in memory",
        variable="INFERFLUX_NATS_TOKENS_REPLICAS",
    )
    images_max_bytes: ByteCount = setting(
        _STREAMS.images_max_chunks * CHUNK_BYTES,
        "disk of nats-server for the pixels of [images](images.md), which lie there for an hour; more are "
        "refused until older ones are gone",
        variable="INFERFLUX_IMAGES_MAX_BYTES",
        ge=16 << 20,
        le=1 << 50,
    )
    # Traces are off while both are empty. OpenTelemetry's own names, so that what is set for a fleet counts.
    otlp_endpoint: str = setting(
        "",
        "OTLP collector over gRPC that takes [traces](#traces), such as `http://collector:4317`; "
        "empty sends none. Policy makes none",
        variable="OTEL_EXPORTER_OTLP_ENDPOINT",
        ordinary=True,
    )
    otlp_protocol: Literal["grpc", ""] = setting(
        "grpc",
        "the only protocol there is; any other stops the start",
        variable="OTEL_EXPORTER_OTLP_PROTOCOL",
    )
    trace_file: str = setting(
        "",
        "file to append finished spans to, one as JSON per line; empty writes none",
        variable="INFERFLUX_TRACE_FILE",
    )

    @model_validator(mode="after")
    def _has_cert_and_key(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("INFERFLUX_TLS_CERT and INFERFLUX_TLS_KEY go together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("INFERFLUX_TLS_CLIENT_CA needs INFERFLUX_TLS_CERT")
        return self

    @field_validator("otlp_endpoint")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if value and _GRPC_URL.fullmatch(value) is None:
            raise ValueError("must be a URL without a path, such as http://collector:4317")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Environment(settings_cls)

    @property
    def client_tls(self) -> TlsFiles:
        """TLS files with which it calls servers."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_ca, variable="INFERFLUX_TLS_CA")

    @property
    def server_tls(self) -> ServerTls | None:
        """TLS with which its servers are called; None for plain text.

        Raises:
            InvalidArgument: a file cannot be used.
        """
        if self.tls_cert is None:
            return None
        return ServerTls(TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca))

    def has_reflection(self, tls: ServerTls | None) -> bool:
        """True if a gRPC server describes its methods."""
        return self.reflection == "on" or (self.reflection == "auto" and tls is None)

    @property
    def stream_limits(self) -> StreamLimits:
        return StreamLimits(
            queue_limit=self.queue_limit,
            tokens_max_age_s=self.tokens_max_age_s,
            tokens_max_bytes=self.tokens_max_bytes,
            images_max_chunks=self.images_max_bytes // CHUNK_BYTES,
            replicas=_number_of(self.nats_replicas),
            tokens_replicas=_number_of(self.nats_tokens_replicas),
        )


def _number_of(replicas: Replicas) -> int:
    return AUTO if replicas == "auto" else int(replicas)


def _read(path: str, variable: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{variable}: cannot read {path}: {error}", field=variable) from None


class BadSettings(Exception):
    """Values that cannot be used.

    Attributes:
        lines: the variable of each, or the service's name where several do not fit, and a line that says why.
    """

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        super().__init__("\n".join(line for _, line in lines))
        self.lines = lines


def load(cls: type[S]) -> S:
    """Read the environment; for each bad value or variable that is gone print a line, and exit with 2."""
    try:
        if gone := refusals(os.environ):
            raise BadSettings([("", line) for line in gone])
        return read(cls)
    except BadSettings as error:
        print(error, file=sys.stderr)  # noqa: T201
        sys.exit(2)


def read(cls: type[S]) -> S:
    """Read the environment.

    Raises:
        BadSettings: a value cannot be used.
    """
    try:
        return cls()
    except SettingsError as error:
        cause = error.__cause__
        variable = cause.field if isinstance(cause, InvalidArgument) else ""
        raise BadSettings([(variable, str(cause or error))]) from None
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise BadSettings([_bad_value(cls, problem) for problem in problems]) from None


def _bad_value(cls: type[ServiceSettings], problem: Mapping[str, Any]) -> tuple[str, str]:
    """The variable of a value that cannot be used, and a line that says why."""
    prefix = cls.model_config.get("env_prefix", "")
    name = str(problem["loc"][0]) if problem["loc"] else _service(prefix)
    variable, within = _variable(cls, name, prefix), _path(problem["loc"][1:])
    value = problem.get("input")
    is_shown = isinstance(value, str | int | float) and not _is_secret(cls, name)
    given = f" (given: {_without_password(str(value))!r})" if is_shown else ""
    return variable, f"{variable}: {within}{_plain(problem['type'], problem['msg'])}{given}"


def _service(prefix: str) -> str:
    """Name of the service whose settings have a prefix."""
    return prefix.removeprefix(_SUITE_PREFIX).rstrip("_").lower() or "settings"


def _path(parts: Sequence[str | int]) -> str:
    """Place within a value of JSON, with a blank after it."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return f"{path.removeprefix('.')} " if path else ""


def _plain(kind: str, message: str) -> str:
    return in_plain_words(kind, message, mapping="a JSON object", sequence="a JSON list")


def _without_password(value: str) -> str:
    """A value in which a URL may have a user and a password, without these."""
    return re.sub(r"//[^\s,]*@", "//***@", value)


def _is_secret(cls: type[ServiceSettings], name: str) -> bool:
    """True if a field is a secret, whether pydantic names the field or its alias."""
    fields = cls.model_fields
    field = fields.get(name) or next((f for f in fields.values() if f.validation_alias == name), None)
    return field is not None and field.annotation is SecretStr


def misspelt(cls: type[ServiceSettings], names: Iterable[str]) -> dict[str, str]:
    """Variables that this service does not know and that are nearly ones of its own, each with the nearest.

    Variables of other services pass: their names differ by more than a slip of the hand.
    """
    return nearly(variables(cls), names)


def variables(cls: type[ServiceSettings]) -> dict[str, str]:
    """The name of each field by its environment variable."""
    prefix = cls.model_config.get("env_prefix", "")
    return {_variable(cls, name, prefix): name for name in cls.model_fields}


def nearly(variables: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Names that are none of the variables, nor name a file with the value of one, and that are nearly one:
    each with the nearest."""
    known = {variable.removeprefix(_SUITE_PREFIX): variable for variable in variables}
    found: dict[str, str] = {}
    for name in names:
        rest = name.removeprefix(_SUITE_PREFIX)
        if rest == name or rest in known or rest.removesuffix(FILE_SUFFIX) in known:
            continue
        for nearest in difflib.get_close_matches(rest, known, n=1, cutoff=_SLIP):
            found[name] = known[nearest]
    return found


def _variable(cls: type[ServiceSettings], name: str, prefix: str) -> str:
    """The environment variable of a field, whether pydantic names the field or its alias."""
    field = cls.model_fields.get(name)
    return name if field is None else _variable_of(field, name, prefix)


def _variable_of(field: FieldInfo, name: str, prefix: str) -> str:
    return field.validation_alias if isinstance(field.validation_alias, str) else f"{prefix}{name}".upper()
