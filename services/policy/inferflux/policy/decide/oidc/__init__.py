"""Tokens of OpenID Connect issuers, which stand beside API keys."""
