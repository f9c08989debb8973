"""Simulated fleets whose workers have roles, and fetch KV state from each other."""
