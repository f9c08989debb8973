"""`inferctl doctor`: an installation on this machine, its faults, and what to do about each."""
