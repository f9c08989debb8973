"""Paths and shapes of llama.cpp's own server, for scripts and plugins that were written for it."""
