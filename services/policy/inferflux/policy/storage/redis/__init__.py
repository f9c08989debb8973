"""Redis as the storage."""
