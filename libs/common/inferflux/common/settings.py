"""What every service is configured with, from environment variables alone."""

from __future__ import annotations

import re
import socket
import sys
import uuid
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, JsonValue, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from inferflux.common import subjects
from inferflux.common.stream_limits import StreamLimits

S = TypeVar("S", bound="ServiceSettings")

_PYDANTIC_SUBJECT = re.compile(r"^(Input|String|Value|URL) should ")
_GRPC_URL = re.compile(r"https?://[^/\s]+/?")


def _check_subject_token(value: str) -> str:
    if not subjects.is_safe_token(value):
        raise ValueError("must be 1-64 of A-Z a-z 0-9 _ -")
    return value


SubjectToken = Annotated[str, AfterValidator(_check_subject_token)]
"""A name that can stand in a NATS subject as it is."""


def unique_name() -> str:
    """A name for this process among its kind: its host's, and six random hex digits."""
    host = subjects.escape(socket.gethostname()).replace("=", "_")[:48]
    return f"{host}-{uuid.uuid4().hex[:6]}"


EXPERT: dict[str, JsonValue] = {"expert": True}
"""`json_schema_extra` of a setting that few deployments change: the manual lists it in a table of its own."""

LogLevel = Literal["debug", "info", "warning", "error"]


class ServiceSettings(BaseSettings):
    """The common part. A service subclasses it and sets its own `env_prefix` for its own fields.

    Descriptions are Markdown: `make docs` writes them into docs/operations.md.
    """

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    nats_url: str = Field(
        default="nats://127.0.0.1:4222",
        validation_alias="INFERFLUX_NATS_URL",
        min_length=1,
        description="nats-server, or several, comma-separated. Not used by policy",
    )
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        validation_alias="INFERFLUX_REDIS_URL",
        min_length=1,
        description="Redis or Valkey: of policy, and of the "
        "[prefix index](architecture.md#the-prefix-index), which workers and schedulers can do without. "
        "Not used by gateways",
    )
    cache_block_tokens: int = Field(
        default=16,
        ge=1,
        le=1024,
        validation_alias="INFERFLUX_CACHE_BLOCK_TOKENS",
        description="tokens of a block in the prefix index. Workers and schedulers need the same",
        json_schema_extra=EXPERT,
    )
    metrics_listen: str = Field(
        default="127.0.0.1:0",
        validation_alias="INFERFLUX_METRICS_LISTEN",
        description="host:port of `/metrics`, `/livez` and `/readyz`; port 0 takes a free one and logs it",
    )
    log_level: LogLevel = Field(
        default="info",
        validation_alias="INFERFLUX_LOG_LEVEL",
        description="the least severe lines that are logged",
    )
    log_format: Literal["console", "json"] = Field(
        default="console",
        validation_alias="INFERFLUX_LOG_FORMAT",
        description="`console` for people, `json` for machines; both on stderr",
    )
    drain_limit_s: float = Field(
        default=30.0,
        ge=0,
        le=3600,
        validation_alias="INFERFLUX_DRAIN_LIMIT_S",
        description="after SIGTERM, running requests get this long to end",
    )
    parent_pid_check: bool = Field(
        default=False,
        validation_alias="INFERFLUX_EXIT_WITH_PARENT",
        description="end with SIGTERM when the parent process dies (Linux)",
        json_schema_extra=EXPERT,
    )
    queue_limit: int = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        validation_alias="INFERFLUX_QUEUE_LIMIT",
        description="jobs the queue holds; one more is refused with RESOURCE_EXHAUSTED",
    )
    tokens_max_age_s: float = Field(
        default=300.0,
        ge=1,
        le=86400,
        validation_alias="INFERFLUX_TOKENS_MAX_AGE_S",
        description="how long token chunks can be replayed",
    )
    tokens_max_bytes: int = Field(
        default=128 << 20,
        ge=1 << 20,
        validation_alias="INFERFLUX_TOKENS_MAX_BYTES",
        description="memory for token chunks in nats-server; the oldest go first",
        json_schema_extra=EXPERT,
    )
    # Traces are off while both are empty. OpenTelemetry's own names, so that what is set for a fleet counts.
    otlp_endpoint: str = Field(
        default="",
        validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT",
        description="OTLP collector over gRPC that takes [traces](#traces), such as `http://collector:4317`; "
        "empty sends none. Policy makes none",
    )
    otlp_protocol: Literal["grpc", ""] = Field(
        default="grpc",
        validation_alias="OTEL_EXPORTER_OTLP_PROTOCOL",
        description="the only protocol there is; any other stops the start",
        json_schema_extra=EXPERT,
    )
    trace_file: str = Field(
        default="",
        validation_alias="INFERFLUX_TRACE_FILE",
        description="file to append finished spans to, one as JSON per line; empty writes none",
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _names_a_host(cls, value: str) -> str:
        if value and _GRPC_URL.fullmatch(value) is None:
            raise ValueError("must be a URL without a path, such as http://collector:4317")
        return value

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
    return _PYDANTIC_SUBJECT.sub("must ", message.removeprefix("Value error, "))


def _is_secret(cls: type[ServiceSettings], name: str) -> bool:
    field = cls.model_fields.get(name)
    return field is not None and field.annotation is SecretStr


def _variable(cls: type[ServiceSettings], name: str, prefix: str) -> str:
    """The environment variable of a field, whether pydantic names the field or its alias."""
    field = cls.model_fields.get(name)
    if field is None:
        return name
    return field.validation_alias if isinstance(field.validation_alias, str) else f"{prefix}{name}".upper()
