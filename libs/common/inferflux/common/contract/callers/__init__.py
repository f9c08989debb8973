"""Callers: their keys, tenants, scopes and shares (pure)."""
