"""The models that workers serve, and how well each does."""
