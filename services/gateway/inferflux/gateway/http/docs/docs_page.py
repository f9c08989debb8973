"""GET /docs: the OpenAPI document as one page of HTML. It loads nothing and runs nothing. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from .openapi_fields import COMMON

Json = Mapping[str, Any]

_STYLE = """
:root{color-scheme:light dark;--line:#d8dde4;--soft:#f4f6f9;--ink:#1b2430;--dim:#5c6876;--get:#0a7d4f;
--post:#2257c4}
@media(prefers-color-scheme:dark){:root{--line:#333c48;--soft:#1b222c;--ink:#e4e9f0;--dim:#98a4b3;
--get:#4fc98f;--post:#86abf5}body{background:#12171e}}
*{box-sizing:border-box}
html{scroll-padding-top:1rem}
body{margin:0;font:15px/1.55 system-ui,sans-serif;color:var(--ink);display:grid;
grid-template-columns:17rem 1fr}
nav{position:sticky;top:0;height:100vh;overflow:auto;padding:1.2rem 1rem;background:var(--soft);
border-right:1px solid var(--line);font-size:13px}
nav strong{font-size:18px}
nav p{margin:1.1rem 0 .3rem;color:var(--dim);font-weight:600}
nav a{display:block;padding:.1rem 0;color:inherit;text-decoration:none;overflow-wrap:anywhere}
nav a:hover{text-decoration:underline}
main{max-width:64rem;padding:1.2rem 2rem 4rem;min-width:0}
section{border-top:1px solid var(--line);padding:1.2rem 0}
h1{margin:.2rem 0}
h2{margin:2.2rem 0 .6rem}
h3{margin:0 0 .3rem;font:600 16px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
h4{margin:1rem 0 .3rem;font-size:13px;color:var(--dim)}
b{color:var(--post)}
b.get{color:var(--get)}
code,pre{font:13px/1.5 ui-monospace,monospace}
code{overflow-wrap:anywhere}
pre{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;
overflow:auto;margin:.3rem 0}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;border-top:1px solid var(--line)}
th{font-size:13px;color:var(--dim);border:0}
td:first-child{white-space:nowrap}
td em{color:var(--dim);font-style:normal}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--dim)}
@media(max-width:50rem){body{display:block}nav{position:static;height:40vh}main{padding:1rem}
td:first-child{white-space:normal}}
"""
# A page that loads nothing, and has this style alone.
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; frame-ancestors 'none'"

# Bodies in bodies, as the page shows them.
_MOST_DEPTH = 4
# A longer body has its members on lines of their own.
_LINE = 72
_GROUPS = (
    (
        "Generate",
        ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/generate"),
    ),
    ("Embed", ("/v1/embeddings", "/v1/rerank")),
    ("Tokens", ("/v1/tokenize", "/v1/detokenize")),
    ("Models", ("/v1/models",)),
    ("Ollama", ("/api/",)),
    ("Health", ("/healthz", "/livez", "/readyz")),
    ("Administration", ("/v1/admin/",)),
)


def render(document: Json) -> str:
    """The page of a document.

    Args:
        document: OpenAPI 3.1, with an example for each body.
    """
    page = _Page(document)
    groups = [(title, list(page.operations(paths))) for title, paths in _GROUPS]
    links = "".join(f"<p>{title}</p>{''.join(map(_link, found))}" for title, found in groups)
    parts = "".join(f"<h2>{title}</h2>{''.join(map(page.section, found))}" for title, found in groups)
    version = escape(document["info"]["version"])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>InferFlux API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<nav><strong>InferFlux</strong> {version}{links}</nav><main><h1>InferFlux API</h1>"
        "<p>OpenAI's API over HTTP. Its clients need this server's address with <code>/v1</code> as base "
        "URL, and a key. In the examples <code>$URL</code> is this address and <code>$KEY</code> a key. "
        'Programs read <a href="/openapi.json">/openapi.json</a>.</p>'
        "<p>Defaults are in brackets. Unknown fields are ignored. A value that is not served is refused "
        "with status 400, and <code>error.param</code> names its field.</p>"
        f"{parts}</main></body></html>"
    )


def _link(operation: tuple[str, str, Json]) -> str:
    method, path, _ = operation
    return f'<a href="#{_anchor(method, path)}">{_badge(method)} {escape(_short(path))}</a>'


def _anchor(method: str, path: str) -> str:
    return escape(f"{method}{path}".replace("/", "-").replace("{", "").replace("}", ""))


def _badge(method: str) -> str:
    return f'<b class="{method}">{method.upper()}</b>'


def _short(path: str) -> str:
    return path.removeprefix("/v1/admin/")


class _Page:
    def __init__(self, document: Json) -> None:
        self._document = document

    def operations(self, paths: tuple[str, ...]) -> Iterator[tuple[str, str, Json]]:
        """Methods, paths and operations of a group: of these paths, and below them."""
        for path, methods in self._document["paths"].items():
            if any(path == one or path.startswith(one.rstrip("/") + "/") for one in paths):
                for method, operation in methods.items():
                    yield method, path, operation

    def section(self, found: tuple[str, str, Json]) -> str:
        method, path, operation = found
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        said = escape(operation["summary"])
        if "description" in operation:
            said += f" {escape(operation['description'])}"
        fields = self._table("Fields", body["schema"]) if body else ""
        answers = operation["responses"]["200"]["content"]
        events = "<p>With <code>stream</code>: events, or lines.</p>" if len(answers) > 1 else ""
        told = self._answer(answers)
        return (
            f'<section id="{_anchor(method, path)}"><h3>{_badge(method)} {escape(path)}</h3><p>{said}</p>'
            f"<h4>Example</h4><pre>{escape(_curl(method, path, operation, body))}</pre>"
            f"{fields}{told}{events}{_refusals(operation)}</section>"
        )

    def _answer(self, answers: Json) -> str:
        schema = answers.get("application/json", {}).get("schema")
        if schema is not None:
            return f"<details><summary>Answer</summary>{self._table('', schema)}</details>"
        kind = "events" if "text/event-stream" in answers else "plain text"
        return f"<p>The answer is {kind}.</p>"

    def _table(self, title: str, schema: Json) -> str:
        schema = self._resolved(schema)
        fields = schema.get("properties", {})
        common = {name: field for name, field in fields.items() if field.get(COMMON)}
        own = {name: field for name, field in fields.items() if name not in common}
        head = f"<h4>{title}</h4>" if title else ""
        made = head + _table_of(self._rows({**schema, "properties": own}, "", 0)) if own else ""
        if common:
            inner = _table_of(self._rows({"properties": common}, "", 0))
            made += f"<details><summary>Sampling, priority and form of the answer</summary>{inner}</details>"
        return made

    def _rows(self, schema: Json, prefix: str, depth: int) -> Iterator[str]:
        """A row for each field, what is needed first, and for those of objects in it."""
        schema = self._resolved(schema)
        required = schema.get("required", ()) if not depth else ()
        fields = schema.get("properties", {})
        for name, field in sorted(fields.items(), key=lambda pair: pair[0] not in required):
            path = prefix + name
            needed = "<strong>needed</strong> " if name in required and "description" in field else ""
            meaning = escape(field.get("description", ""))
            yield (
                f"<tr><td><code>{escape(path)}</code></td><td><em>{escape(self._type(field))}</em></td>"
                f"<td>{needed}{meaning}</td></tr>"
            )
            if depth < _MOST_DEPTH:
                yield from self._inner(field, path, depth + 1)

    def _inner(self, field: Json, path: str, depth: int) -> Iterator[str]:
        for one in self._alternatives(field):
            if one.get("type") == "array":
                yield from self._inner(one.get("items", {}), f"{path}[]", depth)
            elif "properties" in one:
                yield from self._rows(one, f"{path}.", depth)

    def _type(self, field: Json) -> str:
        if "enum" in field or "const" in field:
            values = field.get("enum", [field.get("const")])
            return " | ".join(json.dumps(value) for value in values if value is not None)
        names = dict.fromkeys(self._name(one) for one in self._alternatives(field))
        return " | ".join(name for name in names if name != "null") or "any"

    def _name(self, one: Json) -> str:
        if "enum" in one or "const" in one:
            return self._type(one)
        if one.get("type") == "array":
            return f"list of {self._type(one.get('items', {}))}"
        return str(one.get("type", "any"))

    def _alternatives(self, field: Json) -> list[Json]:
        field = self._resolved(field)
        return [each for one in field.get("anyOf", ()) for each in self._alternatives(one)] or [field]

    def _resolved(self, schema: Json) -> Json:
        if "$ref" not in schema:
            return schema
        found: Json = self._document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return found


def _table_of(rows: Iterator[str]) -> str:
    return f"<table><tr><th>name</th><th>type</th><th></th></tr>{''.join(rows)}</table>"


def _curl(method: str, path: str, operation: Json, body: Json) -> str:
    example = body.get("example", {})
    parts = [f"curl {'-N ' if example.get('stream') else ''}$URL{path.replace('{model}', 'inferflux-demo')}"]
    if operation.get("security") != []:
        parts.append('-H "Authorization: Bearer $KEY"')
    if method == "post":
        is_long = len(json.dumps(example)) > _LINE
        parts.append(f"-d '{json.dumps(example, indent=2 if is_long else None)}'")
    return " \\\n  ".join(parts)


def _refusals(operation: Json) -> str:
    refusals = {code: said for code, said in operation["responses"].items() if code != "200"}
    rows = "".join(
        f"<tr><td>{code}</td><td>{escape(said['description'])}</td></tr>" for code, said in refusals.items()
    )
    return f"<details><summary>Other statuses</summary><table>{rows}</table></details>"
