"""The audit trail: one line per call and per change, in a chain of keyed hashes."""
