"""Questions of operators to a gateway, and its way to the schedulers."""
