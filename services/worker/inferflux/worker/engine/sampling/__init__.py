"""Sampling, from logits to tokens: filters, penalties, noise and log-probabilities."""
