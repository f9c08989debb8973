"""Public traces of traffic, read from ../shared/data/traces: when requests came, and how long they were."""
