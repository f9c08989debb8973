"""The answer cache: requests that are equal in all that decides an answer get the one that was given before.

`key` says which requests are equal, `record` keeps an answer and cuts it, `store` is what is in Redis, and
`cache` puts them together. Without Redis every request is computed.
"""
