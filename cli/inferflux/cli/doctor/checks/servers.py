"""NATS and Redis: reachable, willing, and set up so that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

from inferflux.cli.doctor.finding import Finding, ok, problem, unknown, warning
from inferflux.cli.doctor.seen import Failure, Nats, NatsServer, Redis
from inferflux.cli.stack.servers import NATS_MAX_PAYLOAD

_LEAST_PAYLOAD = 1 << 20
_CLOCKS_MAY_DIFFER_S = 2.0
_URLS = {"nats": "INFERFLUX_NATS_URL", "redis": "INFERFLUX_REDIS_URL"}


def nats(seen: Nats) -> Iterator[Finding]:
    """Findings about nats-server."""
    for server in seen.servers:
        if server.failure is not None:
            yield _failed("nats", server)
        elif not server.has_jetstream:
            remedy = (
                "start nats-server with -js, or a block `jetstream {store_dir: ...}` in its configuration"
            )
            yield problem("nats", f"{server.address} has JetStream off", remedy)
        elif server.max_payload < NATS_MAX_PAYLOAD:
            level = warning if server.max_payload >= _LEAST_PAYLOAD else problem
            said = (
                f"{server.address} takes messages of {server.max_payload:,} bytes: long prompts are refused"
            )
            yield level(
                "nats", said, f"`max_payload: {NATS_MAX_PAYLOAD}` in its configuration, then reload it"
            )
        else:
            yield ok("nats", f"{server.address} takes this user, with JetStream")
    missing = [name for name, there in seen.streams.items() if there is False]
    silent = [name for name, there in seen.streams.items() if there is None]
    if missing:
        remedy = "a scheduler makes them when it starts: start inferflux.scheduler, or see its log"
        yield problem("nats", f"streams are missing: {', '.join(missing)}", remedy)
    if silent:
        remedy = (
            "use the user gateway, scheduler or worker of nats-users.conf; in a cluster, start most servers"
        )
        yield unknown("nats", f"streams that do not answer this user: {', '.join(silent)}", remedy)
    if seen.streams and not missing and not silent:
        yield ok("nats", f"{len(seen.streams)} streams")


def redis(seen: Redis) -> Iterator[Finding]:
    """Findings about Redis or Valkey."""
    if seen.failure is not None:
        yield _failed("redis", seen)
        return
    if seen.is_read_only:
        remedy = "INFERFLUX_REDIS_URL: name the primary (`ROLE` there says master), or its sentinels"
        yield problem("redis", f"{seen.address} is a read-only replica", remedy)
    elif seen.is_read_only is None:
        yield ok("redis", f"{seen.address} takes this user, who reads alone")
    else:
        yield ok("redis", f"{seen.address} takes this user")
    yield from _eviction(seen)


def _eviction(seen: Redis) -> Iterator[Finding]:
    if seen.max_memory is None:
        said = f"{seen.address}: this user may not ask what it evicts"
        yield unknown("redis", said, "as its operator: `CONFIG GET maxmemory-policy` should say noeviction")
    elif seen.max_memory and seen.eviction.startswith("allkeys"):
        level = problem if seen.keeps_policy else warning
        lost = "API keys and roles too" if seen.keeps_policy else "counters of limits too"
        said = f"{seen.address} evicts any key (maxmemory-policy {seen.eviction}): {lost}"
        yield level(
            "redis", said, "`CONFIG SET maxmemory-policy noeviction`, and the same in its configuration"
        )
    elif seen.max_memory and seen.eviction.startswith("volatile"):
        said = f"{seen.address} evicts keys that expire (maxmemory-policy {seen.eviction}): counters too"
        yield warning(
            "redis", said, "`CONFIG SET maxmemory-policy noeviction`, and the same in its configuration"
        )


def clock(nats_seen: Nats | None, redis_seen: Redis | None) -> Iterator[Finding]:
    """Findings about this machine's clock beside those of the servers."""
    sources = {
        "NATS": None if nats_seen is None else nats_seen.ahead_s,
        "Redis": None if redis_seen is None else redis_seen.ahead_s,
    }
    known = {name: ahead_s for name, ahead_s in sources.items() if ahead_s is not None}
    for name, ahead_s in known.items():
        if abs(ahead_s) > _CLOCKS_MAY_DIFFER_S:
            said = (
                f"this clock is {abs(ahead_s):.1f} s {'behind' if ahead_s > 0 else 'ahead of'} that of {name}"
            )
            remedy = "have both machines follow NTP: `timedatectl set-ntp true`, or chrony"
            yield problem("clock", said, remedy)
    if not known:
        yield unknown("clock", "neither NATS nor Redis tells its time", "start them, and try again")
    elif all(abs(ahead_s) <= _CLOCKS_MAY_DIFFER_S for ahead_s in known.values()):
        yield ok("clock", f"within {_CLOCKS_MAY_DIFFER_S:g} s of {' and '.join(known)}")


def _failed(check: str, server: NatsServer | Redis) -> Finding:
    variable, program = _URLS[check], "nats-server" if check == "nats" else "valkey-server"
    words = f": {server.detail}" if server.detail else ""
    host, _, port = server.address.rpartition(":")
    said, remedy = {
        Failure.REFUSED: (
            f"{server.address}: port {port} is closed",
            f"start {program} on {host}, or name another in {variable}",
        ),
        Failure.UNREACHABLE: (
            f"{server.address} cannot be reached{words}",
            f"{variable}: check the name and the network; a firewall must let port {port} through",
        ),
        Failure.SILENT: (
            f"{server.address} takes connections and does not answer in time{words}",
            f"look at {program}'s log, and at what is between: a proxy, a firewall",
        ),
        Failure.FOREIGN: (
            f"{server.address} is no {program}: it greets as something else",
            f"{variable}: name the port of {program}",
        ),
        Failure.LOGIN: (
            f"{server.address} refuses the user or the password{words}",
            f"{variable}: take both from what made its users; in a URL, escape / ? # @ : % of a password",
        ),
        Failure.TLS: (
            f"{server.address}: TLS does not work{words}",
            "INFERFLUX_TLS_CA has to be the CA of the server's certificate, and the URL to name a host in it",
        ),
        Failure.URL: (
            f"{server.detail}",
            f"{variable}: write it as docs/operations.md says",
        ),
    }[server.failure or Failure.URL]
    return problem(check, said, remedy)
