"""A table of rows as the storage."""
