"""Limits of keys, tenants and models: sliding windows, daily quotas, and requests at the same time."""
