"""Answers that change with what else is cached, runs, or dies; and what it costs that they do not."""
