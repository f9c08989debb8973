"""Tiers below the KV cache for computed prefixes and preempted sequences: host memory, then disk.

tiers   what the engine's memory asks: keep, find, hold
space   what stays in a tier of limited size, and what leaves it  (pure)
kept    a state that is kept, and what came, moved and went        (pure)
index   which kept tokens are the longest prefix of others         (pure)
rates   whether restoring beats computing again                    (pure)
reads   files that are read for requests, each once                (pure)
searches  what is looked for in what other processes have left    (pure)
disk    reads and writes of the disk tier, off the engine's thread
folder  the files: written whole or not at all, and refused if they are not whole
claims  the folders: one of each process, and what dead ones have left
"""
