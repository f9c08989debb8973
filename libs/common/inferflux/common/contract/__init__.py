"""Names, limits and errors that all services share, and what a message between them may say (pure)."""
