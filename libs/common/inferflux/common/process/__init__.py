"""The life of one process: settings, logs, metrics, start, readiness and end."""
