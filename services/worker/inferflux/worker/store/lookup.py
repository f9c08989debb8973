"""Lookup of the files that a source stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from inferflux.common.contract.errors import InvalidArgument, Unavailable
from inferflux.common.contract.models.model_sources import (
    NO_PROJECTOR,
    Source,
    SourceKind,
    check_file_name,
    check_no_projector,
    choose,
    choose_projector,
    is_file_name,
    shards_of,
    stored_name,
)
from inferflux.common.http.http_client import HttpClient

from .transfer import MAX_REDIRECTS, Retries, Wanted, at_source, refusal, retrying

_OK, _UNAUTHORIZED = 200, 401
_MOST_BYTES = 16 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
)
_MODEL_LAYER = "application/vnd.ollama.image.model"
_PROJECTOR_LAYER = "application/vnd.ollama.image.projector"
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where names are looked up.

    Attributes:
        hugging_face, ollama: URLs.
        hf_token: for Hugging Face alone; empty: none.
    """

    hugging_face: str
    ollama: str
    hf_token: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a model, the first shard first, and its projector, if it has one."""

    model: list[Wanted]
    projector: Wanted | None = None

    @property
    def all(self) -> list[Wanted]:
        return [*self.model, self.projector] if self.projector is not None else self.model


class Lookup:
    """Finds the files of a source."""

    def __init__(self, client: HttpClient, endpoints: Endpoints, retries: Retries) -> None:
        self._client = client
        self._endpoints = endpoints
        self._retries = retries

    async def find(self, source: Source, sha256: str, mmproj: str = "") -> Found:
        """All files of the model.

        Args:
            sha256: that its file must have; empty: whatever its server says.
            mmproj: see `choose_projector`.

        Raises:
            InferFluxError: there are none, or it is not clear which are meant.
        """
        match source.kind:
            case SourceKind.WEB:
                file = PurePosixPath(urlsplit(source.place).path).name
                check_no_projector(mmproj, source)
                found = Found([Wanted(stored_name(file), url=source.place)])
            case SourceKind.PATH:
                with at_source(Path(source.place)):
                    found = _files_at(source, mmproj)
            case SourceKind.HUGGING_FACE:
                found = await self._hugging_face(source, mmproj)
            case SourceKind.OCI:
                check_no_projector(mmproj, source)
                found = await self._oci(source, takes_projector=mmproj != NO_PROJECTOR)
        if found.projector is not None and found.projector.name in {file.name for file in found.model}:
            found = replace(found, projector=replace(found.projector, name=f"mmproj-{found.projector.name}"))
        if not sha256:
            return found
        if len(found.model) > 1:
            raise InvalidArgument("the model has several files: one digest cannot be of all", field="sha256")
        return replace(found, model=[_with_digest(found.model[0], sha256)])

    async def _hugging_face(self, source: Source, mmproj: str) -> Found:
        base, token = self._endpoints.hugging_face.rstrip("/"), self._endpoints.hf_token
        about = await self._json(f"{base}/api/models/{source.place}?blobs=true", {}, token)
        siblings = {
            name: s for s in _list(about, "siblings") if is_file_name(name := str(s.get("rfilename", "")))
        }
        commit = str(about.get("sha") or "main")
        revision = commit if re.fullmatch(r"[0-9a-f]{7,64}", commit) else "main"

        def wanted(file: str) -> Wanted:
            lfs = siblings[file].get("lfs")
            lfs = lfs if isinstance(lfs, dict) else {}
            size, digest = lfs.get("size"), str(lfs.get("sha256") or "").lower()
            return Wanted(
                stored_name(PurePosixPath(file).name),
                url=f"{base}/{source.place}/resolve/{revision}/{quote(file)}",
                size=size if isinstance(size, int) else None,
                sha256=digest if re.fullmatch(r"[0-9a-f]{64}", digest) else None,
                token=token,
                is_linked=True,
            )

        chosen = choose(list(siblings), source.which)
        projector = choose_projector(list(siblings), chosen[0], mmproj)
        return Found([wanted(file) for file in chosen], wanted(projector) if projector is not None else None)

    async def _oci(self, source: Source, *, takes_projector: bool) -> Found:
        base = f"{(source.host or self._endpoints.ollama).rstrip('/')}/v2/{source.place}"
        url, headers, token = f"{base}/manifests/{source.which}", {"accept": _MANIFESTS}, ""
        try:
            manifest = await self._json(url, headers, token)
        except _Challenged as challenged:
            token = await self._token(challenged.challenge, base)
            manifest = await self._json(url, headers, token)

        def layers(media_type: str) -> list[dict[str, Any]]:
            return [e for e in _list(manifest, "layers") if str(e.get("mediaType")).startswith(media_type)]

        def wanted(layer: Mapping[str, Any], name: str) -> Wanted:
            digest, size = _DIGEST.fullmatch(str(layer.get("digest"))), layer.get("size")
            if digest is None or not isinstance(size, int) or size < 0:
                raise Unavailable(f"{url} is no manifest: no digest or size of {name}", reason="BAD_ANSWER")
            blob = f"{base}/blobs/sha256:{digest[1]}"
            return Wanted(name, url=blob, size=size, sha256=digest[1], token=token)

        models, projectors = layers(_MODEL_LAYER), layers(_PROJECTOR_LAYER) if takes_projector else []
        if len(models) != 1:
            raise InvalidArgument(
                f"{source.shown} has {len(models)} layers with a GGUF: one is served", field="source"
            )
        if len(projectors) > 1:
            message = f"{source.shown} has {len(projectors)} projectors: one is served, or {NO_PROJECTOR!r}"
            raise InvalidArgument(message, field="mmproj")
        projector = wanted(projectors[0], "mmproj.gguf") if projectors else None
        return Found([wanted(models[0], "model.gguf")], projector)

    async def _token(self, challenge: str, base: str) -> str:
        """A token for readers without a name, as a registry says where to get one."""
        said = dict(_CHALLENGE.findall(challenge))
        realm = said.get("realm", "")
        # The server names it: only its own scheme of asking is followed, by the rules of the client.
        if not challenge.lower().startswith("bearer ") or not realm:
            raise Unavailable(f"{base} wants credentials of another kind", reason="SOURCE_DENIED")
        asked = urlencode({key: said[key] for key in ("service", "scope") if key in said})
        answer = await self._json(f"{realm}?{asked}", {}, "")
        return str(answer.get("token") or answer.get("access_token") or "")

    async def _json(self, url: str, headers: Mapping[str, str], token: str) -> dict[str, Any]:
        return await retrying(lambda: self._ask(url, headers, token), self._retries)

    async def _ask(self, url: str, headers: Mapping[str, str], token: str) -> dict[str, Any]:
        sent = dict(headers) | ({"authorization": f"Bearer {token}"} if token else {})
        async with self._client.stream(
            url, headers=sent, max_redirects=MAX_REDIRECTS, idle_s=self._retries.idle_s
        ) as answer:
            if answer.status == _UNAUTHORIZED and not token and "www-authenticate" in answer.headers:
                raise _Challenged(answer.headers["www-authenticate"])
            if answer.status != _OK:
                raise refusal(answer, url)
            body = bytearray()
            async for part in answer.parts:
                body += part
                if len(body) > _MOST_BYTES:
                    raise Unavailable(f"{url} answered with too much", reason="HTTP_TOO_LARGE")
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise Unavailable(f"{url.partition('?')[0]} answered no JSON object", reason="BAD_ANSWER")
        return said


class _Challenged(Unavailable):
    """A registry says where to get a token."""

    def __init__(self, challenge: str) -> None:
        super().__init__("the registry wants credentials", reason="SOURCE_DENIED")
        self.challenge = challenge


def _with_digest(wanted: Wanted, sha256: str) -> Wanted:
    if wanted.sha256 not in (None, sha256):
        raise InvalidArgument(
            f"its server says that {wanted.name} has the SHA-256 {wanted.sha256}", field="sha256"
        )
    return Wanted(wanted.name, wanted.url, wanted.path, wanted.size, sha256, wanted.token, wanted.is_linked)


def _files_at(source: Source, mmproj: str) -> Found:
    """The model that is at a path: a file with its shards, or the only one of a folder, and its projector."""
    first = path = Path(source.place)
    projector = None
    if path.is_dir():
        files = sorted(p.name for p in path.iterdir() if p.is_file())
        first = path / choose(files, "")[0]
        chosen = choose_projector(files, first.name, mmproj)
        projector = Wanted(stored_name(chosen), path=path / chosen) if chosen is not None else None
    elif not path.is_file():
        raise InvalidArgument(f"{path}: there is no such file on the worker's machine", field="source")
    else:
        check_no_projector(mmproj, source)
    check_file_name(first.name)
    found = [first.with_name(name) for name in shards_of(first.name)]
    for file in found:
        if not file.is_file():
            raise InvalidArgument(f"{file}: there is no such file, and the model needs it", field="source")
    return Found([Wanted(stored_name(p.name), path=p) for p in found], projector)


def _list(said: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = said.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
