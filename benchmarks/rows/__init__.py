"""The rows of `make bench`: what each starts, its runs in turn, and the files of figures."""
