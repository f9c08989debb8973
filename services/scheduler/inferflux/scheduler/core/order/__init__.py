"""Which waiting request is next, and what each tenant was served (pure)."""
