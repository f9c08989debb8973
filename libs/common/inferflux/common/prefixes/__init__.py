"""The fleet's prefix index: which worker has cached how much of a prompt, in Redis.

`hashes` names prefixes, `salt` keeps their names secret, `index` stores which workers have them. All of it is
a hint: a worker compares token ids before it shares anything, so a wrong entry costs time, never an answer.
"""
