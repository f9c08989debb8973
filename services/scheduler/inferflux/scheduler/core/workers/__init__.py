"""Workers, their slots, and which of them takes a request (pure)."""
