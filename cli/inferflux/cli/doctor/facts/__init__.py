"""Facts of an installation, gathered from processes, servers, files and the kernel, each in bounded time."""
