"""Worker: loads models and runs llama.cpp in engine processes that may die."""
