"""Scheduler: takes requests off the queue, orders them, and gives them places on workers."""
