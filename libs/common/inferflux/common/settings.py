"""What every service is configured with, from environment variables alone."""

from __future__ import annotations

import difflib
import re
import socket
import sys
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    JsonValue,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from inferflux.common import address, subjects
from inferflux.common.stream_limits import StreamLimits

S = TypeVar("S", bound="ServiceSettings")

_PYDANTIC_SUBJECT = re.compile(r"^(Input|String|Value|URL) should ")
_SUITE_PREFIX = "INFERFLUX_"
# How alike a misspelt name is to the right one, by difflib's ratio.
_SLIP = 0.85
_BYTE_COUNT = re.compile(r"\d+(\.\d+)?\s*[A-Za-z]*")
_GRPC_URL = re.compile(r"https?://[^/\s]+/?")


def _check_subject_token(value: str) -> str:
    if not subjects.is_safe_token(value):
        raise ValueError("must be 1-64 of A-Z a-z 0-9 _ -")
    return value


SubjectToken = Annotated[str, AfterValidator(_check_subject_token)]
"""A name that can stand in a NATS subject as it is."""


def _check_listen(value: str) -> str:
    if not address.is_address(value):
        raise ValueError("must be host:port")
    return value


def _check_optional_listen(value: str) -> str:
    return _check_listen(value) if value else value


def _check_target(value: str) -> str:
    if not address.is_address(value) or value.startswith(":") or address.split(value, "")[1] == 0:
        raise ValueError("must be host:port, and the port not 0")
    return value


ListenAddress = Annotated[str, AfterValidator(_check_listen)]
"""`host:port`, `[::1]:port`, or `:port` for every interface; port 0 is any free one."""
OptionalListenAddress = Annotated[str, AfterValidator(_check_optional_listen)]
"""The same, or empty for nothing that listens."""
TargetAddress = Annotated[str, AfterValidator(_check_target)]
"""`host:port` of a server to call."""


def _check_byte_count(value: object) -> object:
    # Pydantic takes what begins with a number, whatever follows.
    if isinstance(value, str) and not _BYTE_COUNT.fullmatch(value.strip()):
        raise ValueError("must be a number of bytes, such as 1000000, 512MB or 2GiB")
    return value


ByteCount = Annotated[ByteSize, BeforeValidator(_check_byte_count)]
"""Bytes, with a unit or without: `1024`, `512MB`, `2GiB`."""


def _none_if_empty(value: object) -> object:
    # A path of no characters is the working directory.
    return None if value == "" else value


OptionalPath = Annotated[Path | None, BeforeValidator(_none_if_empty)]
"""A path; a variable that is empty is as good as one that is unset."""


def unique_name() -> str:
    """A name for this process among its kind: its host's, and six random hex digits."""
    host = subjects.escape(socket.gethostname()).replace("=", "_")[:48]
    return f"{host}-{uuid.uuid4().hex[:6]}"


EXPERT: dict[str, JsonValue] = {"expert": True}
"""`json_schema_extra` of a setting that few deployments change: the manual lists it in a table of its own."""


def setting(
    default: object,
    description: str,
    *,
    variable: str | None = None,
    expert: bool = False,
    **bounds: Any,
) -> Any:
    """A setting with a default.

    Args:
        description: in Markdown, for docs/operations.md.
        variable: its environment variable, where that is not the service's prefix and the field's name.
        expert: see `EXPERT`.
        bounds: what pydantic's `Field` checks: `ge`, `gt`, `le`, `min_length`.
    """
    extra = EXPERT if expert else None
    return Field(
        default, description=description, validation_alias=variable, json_schema_extra=extra, **bounds
    )


LogLevel = Literal["debug", "info", "warning", "error"]


class _Environment(EnvSettingsSource):
    """Leaves JSON that does not parse to the field's own check, whose error names the field."""

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
    )
    redis_url: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis or Valkey: of policy, and of the "
        "[prefix index](architecture.md#the-prefix-index), which workers and schedulers can do without. "
        "Gateways need it for the [answer cache](architecture.md#the-answer-cache) alone",
        variable="INFERFLUX_REDIS_URL",
        min_length=1,
    )
    cache_block_tokens: int = setting(
        16,
        "tokens of a block in the prefix index. Workers and schedulers need the same",
        variable="INFERFLUX_CACHE_BLOCK_TOKENS",
        ge=1,
        le=1024,
        expert=True,
    )
    service_key: SecretStr = setting(
        SecretStr(""),
        "a secret of 16 to 256 characters that all services share: with it gateways "
        "[prove themselves](policy.md#services) to policy. Several, comma-separated: the first is sent, "
        "each is accepted. Gateway and policy do not start without one; schedulers and workers need none",
        variable="INFERFLUX_SERVICE_KEY",
    )
    metrics_listen: ListenAddress = setting(
        "127.0.0.1:0",
        "host:port of `/metrics`, `/livez` and `/readyz`; port 0 takes a free one and logs it",
        variable="INFERFLUX_METRICS_LISTEN",
    )
    log_level: LogLevel = setting(
        "info", "the least severe lines that are logged", variable="INFERFLUX_LOG_LEVEL"
    )
    log_format: Literal["console", "json"] = setting(
        "console",
        "`console` for people, `json` for machines; both on stderr",
        variable="INFERFLUX_LOG_FORMAT",
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
        expert=True,
    )
    queue_limit: int = setting(
        4096,
        "jobs the queue holds; one more is refused with RESOURCE_EXHAUSTED",
        variable="INFERFLUX_QUEUE_LIMIT",
        ge=1,
        le=1_000_000,
    )
    tokens_max_age_s: float = setting(
        300.0, "how long token chunks can be replayed", variable="INFERFLUX_TOKENS_MAX_AGE_S", ge=1, le=86400
    )
    tokens_max_bytes: int = setting(
        128 << 20,
        "memory for token chunks in nats-server; the oldest go first",
        variable="INFERFLUX_TOKENS_MAX_BYTES",
        ge=1 << 20,
        expert=True,
    )
    # Traces are off while both are empty. OpenTelemetry's own names, so that what is set for a fleet counts.
    otlp_endpoint: str = setting(
        "",
        "OTLP collector over gRPC that takes [traces](#traces), such as `http://collector:4317`; "
        "empty sends none. Policy makes none",
        variable="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    otlp_protocol: Literal["grpc", ""] = setting(
        "grpc",
        "the only protocol there is; any other stops the start",
        variable="OTEL_EXPORTER_OTLP_PROTOCOL",
        expert=True,
    )
    trace_file: str = setting(
        "",
        "file to append finished spans to, one as JSON per line; empty writes none",
        variable="INFERFLUX_TRACE_FILE",
    )

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
    def stream_limits(self) -> StreamLimits:
        return StreamLimits(
            queue_limit=self.queue_limit,
            tokens_max_age_s=self.tokens_max_age_s,
            tokens_max_bytes=self.tokens_max_bytes,
        )


def load(cls: type[S]) -> S:
    """Read the environment; on a bad value print one line per variable and exit with status 2."""
    try:
        return cls()
    except ValidationError as error:
        prefix = cls.model_config.get("env_prefix", "")
        for problem in error.errors(include_url=False):
            name = str(problem["loc"][0]) if problem["loc"] else "settings"
            variable = _variable(cls, name, prefix)
            value = problem.get("input")
            is_shown = isinstance(value, str | int | float) and not _is_secret(cls, name)
            given = f" (given: {value!r})" if is_shown else ""
            print(f"{variable}: {_plain(problem['type'], problem['msg'])}{given}", file=sys.stderr)  # noqa: T201
        sys.exit(2)


def _plain(kind: str, message: str) -> str:
    """What pydantic says of a value, in the words of one who sets a variable."""
    if kind == "missing":
        return "must be set"
    if kind == "dict_type":
        return "must be a JSON object"
    return _PYDANTIC_SUBJECT.sub("must ", message.removeprefix("Value error, "))


def _is_secret(cls: type[ServiceSettings], name: str) -> bool:
    field = cls.model_fields.get(name)
    return field is not None and field.annotation is SecretStr


def misspelt(cls: type[ServiceSettings], names: Iterable[str]) -> dict[str, str]:
    """Variables that this service does not know and that are nearly ones of its own, each with the nearest.

    Variables of other services pass: their names differ by more than a slip of the hand.
    """
    prefix = cls.model_config.get("env_prefix", "")
    known = {
        variable.removeprefix(_SUITE_PREFIX): variable
        for variable in (_variable(cls, name, prefix) for name in cls.model_fields)
    }
    found: dict[str, str] = {}
    for name in names:
        rest = name.removeprefix(_SUITE_PREFIX)
        if rest == name or rest in known:
            continue
        for nearest in difflib.get_close_matches(rest, known, n=1, cutoff=_SLIP):
            found[name] = known[nearest]
    return found


def _variable(cls: type[ServiceSettings], name: str, prefix: str) -> str:
    """The environment variable of a field, whether pydantic names the field or its alias."""
    field = cls.model_fields.get(name)
    if field is None:
        return name
    return field.validation_alias if isinstance(field.validation_alias, str) else f"{prefix}{name}".upper()
