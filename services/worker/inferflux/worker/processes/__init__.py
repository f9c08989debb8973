"""Child processes of a worker: engines, probes of files, and a witness."""
