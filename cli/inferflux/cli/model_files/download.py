"""Files of the Python package index: where pip finds them, and a transfer that goes on where one broke."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from inferflux.cli.reach.errors import CommandError

from .named import Pin

_BLOCK = 1 << 18
_TIMEOUT_S = 30.0
# Tries one after the other that bring nothing, and the longest pause before one.
_MOST_TRIES = 5
_LONGEST_PAUSE_S = 8.0
_BUSY = frozenset(range(500, 600)) | {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")

Say = Callable[[int], None]
"""Callback that gets the number of bytes of a file that are there."""


class CannotFetchError(CommandError):
    """A file of the index cannot be had; says why."""


def locate(wanted: Sequence[Pin]) -> dict[Pin, str]:
    """URL of each wheel in pip's index. Nothing is installed.

    Raises:
        CannotFetchError: it does not answer, or has not all of them.
    """
    options = ("--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:", "--report", "-")
    done = _pip("install", *options, "--quiet", *(pin.requirement for pin in wanted))
    try:
        found = {
            _normal(entry["metadata"]["name"]): str(entry["download_info"]["url"])
            for entry in json.loads(done.stdout)["install"]
        }
        return {pin: found[_normal(pin.package)] for pin in wanted}
    except (ValueError, KeyError, TypeError):
        raise CannotFetchError(_why(done.stderr)) from None


def download(pin: Pin, url: str, path: Path, say: Say) -> None:
    """Get a wheel. What `path` has of it already is kept; it is checked as a whole.

    Raises:
        CannotFetchError: it does not come, or is another file. What came so far stays for the next try.
    """
    tries = 0
    while tries < _MOST_TRIES:
        before = _size(path)
        try:
            _go_on(url, path, say)
            break
        except urllib.error.HTTPError as error:
            if error.code not in _BUSY:
                return _by_pip(pin, path)
            why = f"its server answers with status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), Exception) and "CERTIFICATE" in str(error):
                return _by_pip(pin, path)
            why = str(error) or type(error).__name__
        tries = 0 if _size(path) > before else tries + 1
        time.sleep(min(2.0**tries / 2, _LONGEST_PAUSE_S))
    else:
        raise CannotFetchError(f"{urlsplit(url).hostname} does not send {pin.requirement}: {why}")
    _check(pin, path)
    return None


def _go_on(url: str, path: Path, say: Say) -> None:
    """Ask for what is missing of a file, and append it. A server that sends all of it starts it anew.

    Raises:
        OSError, HTTPException: it broke.
    """
    have = _size(path)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - as pip says
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        whole = _RANGE.fullmatch(error.headers.get("Content-Range", ""))
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if whole is None or int(whole[2]) != have:
            path.unlink()
            raise ConnectionError("it has another length by now") from None
        return
    with answer:
        told = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        goes_on = told is not None and told[1] == str(have)
        there, total = have if goes_on else 0, int(answer.headers.get("Content-Length") or 0)
        with path.open("ab" if goes_on else "wb") as file:
            total += there
            while block := answer.read(_BLOCK):
                file.write(block)
                there += len(block)
                say(there)
    if there < total:
        raise ConnectionError(f"it broke off after {there:,} of {total:,} bytes")


def _by_pip(pin: Pin, path: Path) -> None:
    """Get a wheel as pip does, which may know a password or certificate for its index. It cannot go on with a
    broken transfer.

    Raises:
        CannotFetchError: it cannot either.
    """
    with TemporaryDirectory(dir=path.parent) as folder:
        done = _pip("download", "--no-deps", "--only-binary", ":all:", "--dest", folder, pin.requirement)
        found = list(Path(folder).glob("*.whl"))
        if not found:
            raise CannotFetchError(_why(done.stderr))
        found[0].replace(path)
    _check(pin, path)


def _check(pin: Pin, path: Path) -> None:
    """Raises CannotFetchError for another file than the one that is pinned, and deletes it."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != pin.sha256:
        path.unlink()
        raise CannotFetchError(f"the index has another file for {pin.requirement}: its SHA-256 is {digest}")


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    usual = ("--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "15")
    return subprocess.run(
        [sys.executable, "-m", "pip", *arguments, *usual], capture_output=True, text=True, check=False
    )


def _why(said: str) -> str:
    """Pip's last line about why it has nothing."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip, which finds it in the package index"
    broken = [line for line in lines if "connection broken" in line]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if broken:
        return "the package index does not answer"
    return f"pip says: {errors[-1]}" if errors else "the package index does not answer"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
