"""Child processes that serve requests and can be killed: for work whose time or memory depends on untrusted input.

`child` is the parent's side, `serving` the child's, `frames` the messages between them. Messages are JSON: reading what
a child wrote runs none of its code. Imports the standard library only, so that a child starts fast.
"""
