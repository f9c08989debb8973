"""Model files before an engine loads them: their contents, and the memory they need."""
