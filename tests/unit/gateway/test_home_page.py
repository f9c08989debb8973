"""GET /: a page that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re

from inferflux.gateway.http.paths.home_page import PAGE, POLICY


def digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_loads_nothing_and_its_policy_allows_its_own_script_alone() -> None:
    page = PAGE.decode()
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert f"script-src 'sha256-{digest(script)}'" in POLICY
    assert f"style-src 'sha256-{digest(style)}'" in POLICY
    assert "default-src 'none'" in POLICY
    assert "connect-src 'self'" in POLICY
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)
    assert "innerHTML" not in script
    assert not re.findall(r"localStorage|sessionStorage|cookie", script)
