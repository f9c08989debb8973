"""GET /: is it up, which models are there, how to call it, and a box to try a chat. It loads nothing else."""

from __future__ import annotations

import base64
import hashlib

from inferflux.gateway.http.front.exchange import Exchange

_STYLE = """
:root{color-scheme:light dark;--line:#d8dde4;--soft:#f4f6f9;--ink:#1b2430;--dim:#5c6876;--ok:#0a7d4f;
--bad:#b3261e;--accent:#2257c4}
@media(prefers-color-scheme:dark){:root{--line:#333c48;--soft:#1b222c;--ink:#e4e9f0;--dim:#98a4b3;--ok:#4fc98f;
--bad:#f2877f;--accent:#86abf5}body{background:#12171e}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:52rem;padding:1.5rem 1.2rem 4rem;font:15px/1.55 system-ui,sans-serif;
color:var(--ink)}
h1{margin:0;font-size:24px}h2{margin:2rem 0 .5rem;font-size:16px}
p{margin:.3rem 0}a{color:var(--accent)}.dim{color:var(--dim)}
#up::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;margin-right:.45em;
background:var(--dim)}
#up.ok::before{background:var(--ok)}#up.bad::before{background:var(--bad)}
input,select,textarea,button{font:inherit;color:inherit;background:var(--soft);border:1px solid var(--line);
border-radius:6px;padding:.4rem .6rem}
textarea{width:100%;min-height:4.5rem;resize:vertical}
label{display:block;margin:.6rem 0 .2rem;color:var(--dim);font-size:13px}
.row{display:flex;gap:.6rem;flex-wrap:wrap}.row>div{flex:1;min-width:14rem}.row input,.row select{width:100%}
button{background:var(--accent);border-color:var(--accent);color:#fff;cursor:pointer;margin:.6rem .4rem 0 0}
button[disabled]{opacity:.5;cursor:default}button.plain{background:none;color:inherit;border-color:var(--line)}
@media(prefers-color-scheme:dark){button{color:#12171e}}
pre,#talk{background:var(--soft);border:1px solid var(--line);border-radius:6px;padding:.7rem .9rem;
overflow-x:auto}
pre{font:13px/1.5 ui-monospace,monospace}
#talk{white-space:pre-wrap;overflow-wrap:anywhere;min-height:3rem}#talk b{color:var(--accent)}
#talk i{color:var(--dim)}#talk .bad{color:var(--bad)}
"""

_SCRIPT = """
const $ = id => document.getElementById(id);
let said = [], running = null;
const key = () => $('key').value.trim();
const kind = {'content-type': 'application/json'};
const headers = () => key() ? {...kind, authorization: 'Bearer ' + key()} : kind;
function line(kind, text) {
  const node = document.createElement('div'), who = document.createElement('b');
  who.textContent = kind ? kind + ': ' : '';
  const body = document.createElement('span');
  body.textContent = text;
  node.append(who, body);
  $('talk').append(node);
  return body;
}
async function look() {
  try {
    const answer = await fetch('/health');
    $('up').className = answer.ok ? 'ok' : 'bad';
    $('up').textContent = answer.ok ? 'It is up and can serve.' : 'It is up, and cannot serve now.';
  } catch { $('up').className = 'bad'; $('up').textContent = 'It does not answer.'; }
}
async function models() {
  let chats = [], note = 'Enter a key to see the models.';
  if (key()) try {
    const answer = await fetch('/v1/models', {headers: headers()});
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error.message);
    chats = found.data.filter(m => m.role === 'generation');
    note = chats.length ? '' : 'No model that chats is served.';
  } catch (error) { note = error.message; }
  $('note').textContent = note;
  $('models').replaceChildren(...chats.map(m => {
    const option = document.createElement('option');
    option.value = m.id;
    option.textContent = m.id + ' (' + m.state + ', ' + m.max_model_len + ' tokens)';
    return option;
  }));
  curl();
}
function curl() {
  const model = $('models').value || 'MODEL';
  $('curl').textContent = "curl -N " + location.origin + "/v1/chat/completions \\\\\\n" +
    "  -H 'Authorization: Bearer KEY' \\\\\\n" +
    "  -d '" + JSON.stringify({model, stream: true, messages: [{role: 'user', content: 'Hello'}]}) + "'";
  $('python').textContent = 'import openai\\n\\nclient = openai.OpenAI(base_url="' + location.origin +
    '/v1", api_key="KEY")\\nfor chunk in client.chat.completions.create(\\n    model="' + model +
    '", stream=True, messages=[{"role": "user", "content": "Hello"}]\\n):\\n' +
    '    print(chunk.choices[0].delta.content or "", end="", flush=True)';
}
async function ask() {
  const text = $('text').value.trim();
  if (!text || running) return;
  $('text').value = '';
  const talk = said;
  talk.push({role: 'user', content: text});
  line('You', text);
  const thought = document.createElement('i'), out = line($('models').value || 'Model', '');
  out.before(thought);
  running = new AbortController();
  $('send').disabled = true;
  $('stop').disabled = false;
  let answer = '';
  try {
    const asked = {model: $('models').value || null, messages: talk, stream: true, max_tokens: 1024};
    const got = await fetch('/v1/chat/completions',
      {method: 'POST', headers: headers(), signal: running.signal, body: JSON.stringify(asked)});
    if (!got.ok) throw new Error((await got.json()).error.message);
    const reader = got.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const {value, done} = await reader.read();
      if (done) break;
      rest += value;
      const events = rest.split('\\n\\n');
      rest = events.pop();
      for (const event of events) {
        const data = event.split('\\n').filter(l => l.startsWith('data: ')).map(l => l.slice(6)).join('');
        if (!data || data === '[DONE]') continue;
        const part = JSON.parse(data);
        if (part.error) throw new Error(part.error.message);
        const delta = part.choices.length ? part.choices[0].delta : {};
        thought.textContent += delta.reasoning_content || '';
        answer += delta.content || '';
        out.textContent = answer;
        if (part.choices.length && part.choices[0].finish_reason === 'length') line('', '(cut)');
      }
    }
  } catch (error) {
    if (error.name !== 'AbortError') { out.textContent += ' ' + error.message; out.className = 'bad'; }
  }
  if (answer) talk.push({role: 'assistant', content: answer});
  else { talk.pop(); if (talk === said && !$('text').value) $('text').value = text; }
  running = null;
  $('send').disabled = false;
  $('stop').disabled = true;
}
$('key').addEventListener('change', models);
$('models').addEventListener('change', curl);
$('send').addEventListener('click', ask);
$('stop').addEventListener('click', () => running && running.abort());
$('clear').addEventListener('click', () => {
  said = [];
  $('talk').replaceChildren();
  if (running) running.abort();
});
$('text').addEventListener('keydown', e => {
  if (e.key === 'Enter' && !e.shiftKey) { e.preventDefault(); ask(); }
});
look(); models(); curl(); setInterval(look, 5000);
"""

PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>InferFlux</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">
<style>{_STYLE}</style></head><body>
<h1>InferFlux</h1>
<p id="up">Looking ...</p>
<div class="row"><div><label for="key">API key: it stays on this page</label>
<input id="key" type="password" autocomplete="off" placeholder="ifx_..."></div>
<div><label for="models">Model</label><select id="models"></select></div></div>
<p id="note" class="dim"></p>
<h2>Try a chat</h2>
<div id="talk" aria-live="polite"></div>
<label for="text">Enter sends, Shift+Enter begins a line</label><textarea id="text"></textarea>
<button id="send">Send</button><button id="stop" class="plain" disabled>Stop</button>
<button id="clear" class="plain">Begin anew</button>
<h2>Call it</h2>
<pre id="curl"></pre><pre id="python"></pre>
<p class="dim">OpenAI's, Anthropic's and llama.cpp's APIs:
<a href="/openapi.json">every path with its fields</a>.</p>
<script>{_SCRIPT}</script></body></html>
""".encode()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src 'sha256-{_hash(_STYLE)}'; script-src 'sha256-{_hash(_SCRIPT)}'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def home(exchange: Exchange) -> None:
    """Answer with the page."""
    own = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    await exchange.answer(200, PAGE, "text/html; charset=utf-8", **own)
