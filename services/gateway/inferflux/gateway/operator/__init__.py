"""What operators ask of a gateway, and its way to the schedulers."""
