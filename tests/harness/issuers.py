"""Issuers of tokens: a provider by others, and one that answers as a test likes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.oidc_keys import SigningKey, claims_of
from harness.policy import until

from inferflux.cli.stack.servers import free_port

LOOPBACK = "127.0.0.0/8"


class Provider:
    """`oidc-provider-mock` as its own process. It signs with RS256 and has its own way with discovery."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.issuer = f"http://127.0.0.1:{self.port}"
        self._log = directory / f"provider-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | {"NO_COLOR": "1"}
            )

        async def answers() -> bool:
            try:
                return bool(await asyncio.to_thread(self._get, "/jwks"))
            except OSError:
                return False

        await until(answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def id_token(self, subject: str, audience: str, **claims: Any) -> str:
        """Log a user in as a browser does, by the authorization code flow."""
        return await asyncio.to_thread(self._id_token, subject, audience, claims)

    def _id_token(self, subject: str, audience: str, claims: dict[str, Any]) -> str:
        if claims:
            self._send("PUT", f"/users/{subject}", json.dumps(claims).encode(), "application/json")
        back = "http://127.0.0.1/callback"
        query = {
            "client_id": audience,
            "redirect_uri": back,
            "response_type": "code",
            "scope": "openid profile",
        }
        location = self._send(
            "POST", f"/oauth2/authorize?{urllib.parse.urlencode(query)}", _form(sub=subject)
        ).headers["Location"]
        (code,) = urllib.parse.parse_qs(urllib.parse.urlparse(location).query)["code"]
        form = _form(
            grant_type="authorization_code",
            code=code,
            redirect_uri=back,
            client_id=audience,
            client_secret="s",
        )
        return str(json.load(self._send("POST", "/oauth2/token", form))["id_token"])

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return bytes(answer.read())

    def _send(
        self, method: str, path: str, body: bytes, content: str = "application/x-www-form-urlencoded"
    ) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": content}, method=method
        )
        return urllib.request.build_opener(_Stay).open(request, timeout=5)


class _Stay(urllib.request.HTTPErrorProcessor):
    """Redirects are answers."""

    def http_response(self, _request: Any, response: Any) -> Any:
        return response


def _form(**fields: str) -> bytes:
    return urllib.parse.urlencode(fields).encode()


class ScriptedIssuer:
    """An issuer whose answers a test sets.

    Attributes:
        documents: what is answered, by path; what is not there has status 404. Bytes go out as they are, with
            a head of 200 unless they have their own.
        asked: the paths that were asked for.
        is_silent: it takes requests and never answers.
    """

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys)
        self.documents: dict[str, Any] = {}
        self.asked: list[str] = []
        self.is_silent = False
        self.issuer = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.issuer = f"http://127.0.0.1:{self.port}"
        self.publish(*self.keys)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.close()

    def publish(self, *keys: SigningKey) -> None:
        """Have these keys and no others from now on."""
        self.keys = list(keys)
        self.documents |= {
            "/.well-known/openid-configuration": {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"},
            "/keys": {"keys": [key.jwk() for key in keys]},
            "/.well-known/jwks.json": {"keys": [key.jwk() for key in keys]},
        }

    def token(self, key: SigningKey | None = None, **claims: Any) -> str:
        return (key or self.keys[0]).sign(claims_of(self.issuer, **claims))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                self.asked.append(path)
                if self.is_silent:
                    await reader.read()
                    return
                writer.write(self._answer(path))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer(self, path: str) -> bytes:
        document = self.documents.get(path)
        if isinstance(document, bytes) and document.startswith(b"HTTP/"):
            return document
        status = b"404 Not Found" if document is None else b"200 OK"
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


@asynccontextmanager
async def scripted(*keys: SigningKey) -> AsyncIterator[ScriptedIssuer]:
    issuer = ScriptedIssuer(*keys)
    await issuer.start()
    try:
        yield issuer
    finally:
        await issuer.stop()


def issuers_variables(*issuers: dict[str, Any], networks: str = LOOPBACK) -> dict[str, Any]:
    """The environment of a policy process that takes their tokens."""
    return {
        "INFERFLUX_POLICY_OIDC_ISSUERS": json.dumps(issuers),
        "INFERFLUX_HTTP_ALLOWED_NETWORKS": networks,
    }
