"""Certificates: whole, in time, and of the hosts that show them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from inferflux.cli.doctor.finding import Finding, ok, problem, unknown, warning
from inferflux.cli.doctor.seen import Certificate

_SOON = timedelta(days=14)
_RENEW = "`inferctl admin certs` makes new ones; services take them without a restart"


def decide(certificates: Iterable[Certificate], now: datetime) -> Iterator[Finding]:
    """Findings about each certificate; one line where there is none."""
    certificates = list(certificates)
    if not certificates:
        yield unknown("certificates", "no setting names one: connections are not encrypted")
    for one in certificates:
        found = list(_faults(one, now))
        yield from found
        if not found:
            yield ok("certificates", f"{one.use}: {one.path}, until {one.not_after:%Y-%m-%d}")


def _faults(one: Certificate, now: datetime) -> Iterator[Finding]:
    where = f"{one.use}: {one.path}"
    if one.failure or one.not_after is None or one.not_before is None:
        remedy = f"{one.use}: name a PEM file that the service's user can read"
        yield problem("certificates", f"{where}: {one.failure}", remedy)
        return
    if one.key_failure:
        remedy = (
            "give the key that was made with the certificate, without a password, readable by its service"
        )
        yield problem("certificates", f"{where}: its key {one.key}: {one.key_failure}", remedy)
    if now >= one.not_after:
        yield problem("certificates", f"{where} expired on {one.not_after:%Y-%m-%d %H:%M} UTC", _RENEW)
    elif now + _SOON >= one.not_after:
        days = (one.not_after - now).days
        yield warning("certificates", f"{where} expires in {days} days, on {one.not_after:%Y-%m-%d}", _RENEW)
    if now < one.not_before:
        said = f"{where} is valid from {one.not_before:%Y-%m-%d %H:%M} UTC on, which is yet to come"
        yield problem("certificates", said, "set this machine's clock, or make the certificate anew")
    for host in one.hosts:
        if not any(_is_of(host, name) for name in one.names):
            said = f"{where} is of {', '.join(one.names) or 'no host'}, and clients call {host}"
            yield problem(
                "certificates", said, f"`inferctl admin certs --host {host}`, or call it by a name in it"
            )


def _is_of(host: str, name: str) -> bool:
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        pass
    host, name = host.lower().rstrip("."), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])
