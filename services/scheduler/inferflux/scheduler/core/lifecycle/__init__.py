"""A job's way: it arrives, waits, is placed, descheduled, finished or lost (pure)."""
