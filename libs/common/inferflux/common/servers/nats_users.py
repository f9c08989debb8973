"""The users of NATS: what each may publish and read, and no more. Pure.

One user for each kind of process, since each does other things. A user reads replies below an inbox prefix of
its own. It may reply once to each message that it was asked with, wherever that says.

Only schedulers make and change streams. Who may change a stream may have it copy its messages to any subject,
or those of any subject into it.

What no permission can tell apart, as nats-server looks at subjects alone:

- A purge names what goes in its body. Gateways purge a subject that is never written to, to find out whether
  JetStream writes; they could purge all jobs. They can cancel all requests anyway.
- JetStream sends what is read directly (DIRECT.GET) to the reply subject that it is given, which it does not
  check: subjects of JetStream's own API too. Who may store a message and read it directly can so make, change
  and delete streams. One that is not there is an empty message, which is enough to delete. So gateways and
  schedulers alone read directly; workers ask the API for messages (STREAM.MSG.GET), readers of tokens have
  consumers. Consumers deliver to any subject, but to none of the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inferflux.common.contract import subjects
from inferflux.common.contract.messages import hosts
from inferflux.common.contract.partitions import SHARDS
from inferflux.common.contract.subjects import (
    IMAGES_BUCKET,
    IMAGES_STREAM,
    JOBS_STREAM,
    KV_BUCKET,
    KV_STREAM,
    SCHEDULERS_BUCKET,
    SCHEDULERS_STREAM,
    STREAMS,
    TOKENIZERS_BUCKET,
    TOKENIZERS_STREAM,
    TOKENS_STREAM,
)

GATEWAY = "gateway"
SCHEDULER = "scheduler"
WORKER = "worker"
OPERATOR = "operator"

# What a worker is sent.
_TO_A_WORKER = (
    subjects.worker_batch,
    subjects.worker_probe,
    subjects.worker_command,
    subjects.worker_kv,
)
# A scheduler process replies once for each partition of the models that it leads.
_MOST_REPLIES = SHARDS
# How long after a message it may be replied to: longer than anyone waits.
_REPLY_WITHIN = "2m"


@dataclass(frozen=True, slots=True)
class NatsUser:
    """A user's permissions, as subjects that may hold wildcards.

    Attributes:
        publish: where it may publish, replies apart.
        subscribe: what it may read. Its own inbox is among it.
        replies: whether it may reply to what it reads.
        is_bound: False for one that may do everything.
    """

    name: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    replies: bool = False
    is_bound: bool = True


def gateway() -> NatsUser:
    """Queues jobs, asks and tells schedulers, reads tokens; publishes those of kept answers;
    stores images."""
    return NatsUser(
        GATEWAY,
        publish=(
            subjects.JOBS_ALL,
            subjects.CANCEL_ALL,
            subjects.WANTED_ALL,
            subjects.SCHEDULER_READERS,
            subjects.SCHEDULER_STATUS,
            subjects.SCHEDULER_ADMIN,
            subjects.TOKENS_ALL,
            *_stream_info(),
            *_write_probe(),
            _api("STREAM.MSG.GET", JOBS_STREAM),
            _api("STREAM.MSG.GET", TOKENIZERS_STREAM),
            f"$O.{IMAGES_BUCKET}.>",
            _api("STREAM.PURGE", IMAGES_STREAM),
            _api("STREAM.MSG.GET", IMAGES_STREAM),
            _api("DIRECT.GET", TOKENS_STREAM),
        ),
        subscribe=(
            _inbox(GATEWAY),
            subjects.ANY_STREAM_DELETED,
            subjects.TOKENS_LED,
            subjects.TOKENS_ALL,
            subjects.WORKER_STATUS_ALL,
            subjects.HOST_STATUS_ALL,
        ),
    )


def scheduler() -> NatsUser:
    """Takes jobs, commands workers, ends requests, holds leases; makes the streams."""
    return NatsUser(
        SCHEDULER,
        publish=(
            subjects.worker_batch("*"),
            subjects.worker_probe("*"),
            subjects.worker_command("*"),
            subjects.host_command("*"),
            subjects.SCHEDULER_LEADER,
            subjects.SCHEDULER_ALIVE,
            subjects.SCHEDULER_SERVED,
            subjects.TOKENS_ALL,
            subjects.CANCEL_ALL,
            f"$KV.{SCHEDULERS_BUCKET}.>",
            *(_api(f"STREAM.{what}", stream) for what in ("CREATE", "UPDATE") for stream in STREAMS),
            *_stream_info(),
            *_write_probe(),
            *(_api(f"CONSUMER.{what}", JOBS_STREAM, "*") for what in ("CREATE", "DELETE", "INFO")),
            _api("CONSUMER.MSG.NEXT", JOBS_STREAM, "*"),
            # What follows the stream, and as it is with a domain and an account before it.
            f"$JS.ACK.{JOBS_STREAM}.>",
            f"$JS.ACK.*.*.{JOBS_STREAM}.>",
            _api("DIRECT.GET", TOKENS_STREAM),
            _api("DIRECT.GET", SCHEDULERS_STREAM, f"$KV.{SCHEDULERS_BUCKET}.>"),
        ),
        subscribe=(
            _inbox(SCHEDULER),
            subjects.ANY_STREAM_DELETED,
            subjects.TOKENS_LED,
            subjects.WORKER_STATUS_ALL,
            subjects.HOST_STATUS_ALL,
            subjects.SCHEDULER_EVENTS,
            subjects.SCHEDULER_READERS,
            subjects.SCHEDULER_STATUS,
            subjects.SCHEDULER_ADMIN,
            subjects.SCHEDULER_ALIVE,
            subjects.SCHEDULER_SERVED,
            subjects.CANCEL_ALL,
        ),
        replies=True,
    )


def worker(worker_id: str = "*") -> NatsUser:
    """Takes batches and commands, publishes tokens, events and heartbeats; stores its tokenizer,
    reads images; asks other workers for KV state, answers them, and keeps it in nats-server for them.

    Args:
        worker_id: of the one worker that is this user; `*`: every worker is.
    """
    name = WORKER if worker_id == "*" else worker_id
    # Each model that it has loaded is a worker.
    ids = ["*"] if worker_id == "*" else hosts.worker_ids(worker_id)
    return NatsUser(
        name,
        publish=(
            subjects.host_status(worker_id),
            *(subjects.worker_status(of) for of in ids),
            subjects.SCHEDULER_EVENTS,
            subjects.TOKENS_ALL,
            *_stream_info(),
            _api("STREAM.MSG.GET", TOKENS_STREAM),
            f"$O.{TOKENIZERS_BUCKET}.>",
            _api("STREAM.PURGE", TOKENIZERS_STREAM),
            _api("STREAM.MSG.GET", TOKENIZERS_STREAM),
            _api("STREAM.MSG.GET", IMAGES_STREAM),
            subjects.worker_kv("*"),
            f"$O.{KV_BUCKET}.>",
            _api("STREAM.PURGE", KV_STREAM),
            _api("STREAM.MSG.GET", KV_STREAM),
        ),
        subscribe=(
            _inbox(name),
            subjects.ANY_STREAM_DELETED,
            subjects.TOKENS_LED,
            subjects.host_command(worker_id),
            *(subject(of) for of in ids for subject in _TO_A_WORKER),
            subjects.CANCEL_ALL,
            subjects.WANTED_ALL,
            subjects.SCHEDULER_LEADER,
        ),
        replies=True,
    )


def observer(tenant: str) -> NatsUser:
    """Reads the tokens of one tenant, live and late.

    The requests that read them late, by consumers, name the tokens' subject in their own, which is how they
    can be allowed for one tenant.
    """
    name, tokens = observer_name(tenant), subjects.tokens(tenant, ">")
    return NatsUser(
        name,
        publish=(
            _api("CONSUMER.CREATE", TOKENS_STREAM, f"*.{tokens}"),
            f"$JS.FC.{TOKENS_STREAM}.>",
        ),
        subscribe=(_inbox(name), tokens),
    )


def operator() -> NatsUser:
    """User who may do everything: for tools of those who run the stack."""
    return NatsUser(OPERATOR, (">",), (">",), is_bound=False)


def observer_name(tenant: str) -> str:
    """The user who reads a tenant's tokens."""
    return f"tokens-{tenant}"


def tenant_of(user: str) -> str | None:
    """Tenant whose tokens a user reads; None for a user that is no observer."""
    start = observer_name("")
    return user.removeprefix(start) if user.startswith(start) else None


def users_config(users: Iterable[NatsUser], passwords: Mapping[str, str]) -> str:
    """nats-server's `authorization`, in the syntax of its configuration.

    Args:
        passwords: by user, of characters that need no escape.
    """
    blocks = "".join(_user_config(user, f'"{passwords[user.name]}"') for user in users)
    return f"authorization {{\n  users: [\n{blocks}  ]\n}}\n"


def _user_config(user: NatsUser, password: str) -> str:
    lines = [f'user: "{user.name}"', f"password: {password}"]
    if user.is_bound:
        lines.append("permissions: {")
        lines.append(f"  publish: {{allow: {_listed(user.publish)}}}")
        lines.append(f"  subscribe: {{allow: {_listed(user.subscribe)}}}")
        if user.replies:
            most = _MOST_REPLIES if user.name == SCHEDULER else 1
            lines.append(f'  allow_responses: {{max: {most}, expires: "{_REPLY_WITHIN}"}}')
        lines.append("}")
    return "".join(["    {\n", *(f"      {line}\n" for line in lines), "    }\n"])


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _inbox(user: str) -> str:
    return f"{subjects.inbox_prefix_of(user)}.>"


def _api(operation: str, stream: str, rest: str = "") -> str:
    return ".".join(part for part in ("$JS.API", operation, stream, rest) if part)


def _stream_info() -> list[str]:
    return [_api("STREAM.INFO", stream) for stream in STREAMS]


def _write_probe() -> list[str]:
    purges = (_api("STREAM.PURGE", stream) for stream in (JOBS_STREAM, SCHEDULERS_STREAM))
    return [*purges, subjects.JOBS_PROBE, subjects.SCHEDULERS_PROBE]
