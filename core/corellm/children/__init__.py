"""Child processes that serve requests and can be killed: for work whose time or memory depends on untrusted input.

In reading order: `child` is the parent's side, `pool` lends several of them, `serving` is the child's side, `frames`
are the messages between them, `memory` is what they share. Messages are JSON: reading what a child wrote runs none of
its code. Imports the standard library only, so that a child starts fast.
"""
