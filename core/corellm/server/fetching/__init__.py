"""Fetches media that requests refer to by URL, from hosts that the operator allows, at public addresses only.

`url` parses and knows which hosts are allowed, `addresses` resolves and knows which addresses are public, `fetcher`
downloads. Only `fetcher` imports an HTTP library.
"""
