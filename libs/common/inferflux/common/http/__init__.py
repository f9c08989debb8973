"""The HTTP client of the services, and the addresses that it may reach."""
