"""Checks of messages that one service receives from another (pure)."""
