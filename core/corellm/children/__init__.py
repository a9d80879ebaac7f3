"""Child processes that answer questions and can be killed: for work that input can make endless or enormous.

`child` is the parent's side, `serving` the child's, `frames` what goes between them. Questions and answers are JSON:
reading what a child wrote runs none of its code. Imports the standard library only, so that a child starts fast.
"""
