"""Responses that are kept: for the next turn of a conversation, for a client that comes back, made without it.

`table` has the rows and their bounds, in memory or in a file; `responses` is what endpoints ask, beside the event loop;
`background` is a response that no client waits for; `items` are the items that a response was made of.
"""
