"""Decisions whether a call may go on (pure, but for what backends are asked)."""
