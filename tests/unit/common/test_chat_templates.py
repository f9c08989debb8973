"""Chat templates as models carry them, and what they may not do."""

from __future__ import annotations

from datetime import datetime

import pytest

from inferflux.common.text.chat_templates.templates import ChatTemplate, TemplateError, TemplateRefusedError

CHATML = """{% for message in messages %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <&>"}]


def render(source: str, *, limit: int = 10_000, messages: list[dict[str, str]] = MESSAGES) -> str:
    template = ChatTemplate(
        source, tokens={"bos_token": "<s>", "eos_token": "</s>"}, max_rendered_bytes=limit
    )
    return template.render(messages)


def test_blocks_leave_no_blank_lines() -> None:
    assert render(CHATML) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <&><|im_end|>\n<|im_start|>assistant\n"
    )


def test_templates_have_what_hugging_face_gives_them() -> None:
    assert render("{{ bos_token }}{{ messages[1] | tojson }}{{ eos_token }}") == (
        '<s>{"role": "user", "content": "Hi <&>"}</s>'
    )
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().astimezone().year)
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    assert render("{% generation %}x{% endgeneration %}y") == "xy"


def test_a_refusal_has_the_templates_words() -> None:
    with pytest.raises(TemplateRefusedError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ messages.clear() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{{ undefined.attribute }}",
        "{{ 1 / 0 }}",
        "{{ range(10**9) | list }}",
        "{% for i in range(9999) %}{{ 'xxxxxxxx' }}{% endfor %}",
        "{{ 'x' * 20000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'etc/passwd' %}",
        "x" * (300 << 10),
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
    ids=range(13),
)
def test_whatever_a_template_does_ends_as_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)
