"""inferctl: the command line, and the stack of one machine."""
