"""Fetches media that requests refer to by URL, from hosts that the operator allows, at public addresses only.

In reading order: `settings` know which hosts are allowed, `url` parses, `addresses` resolves and knows which addresses
are public, `fetcher` downloads in an event loop, `fetch_thread` has one for callers without. Only `fetcher` imports an
HTTP library.
"""
