"""Seeds faults on purpose and runs the tests that should find them: `make mutations`."""
