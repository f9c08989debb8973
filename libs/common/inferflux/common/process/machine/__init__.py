"""The machine under a process: its cores, memory and limits."""
