"""Outputs of a given form: a constraint of the kind `structured`, by llguidance.

In reading order: `forms` makes a grammar of what a request asks for, `grammars` compiles it, `checking` does so first
in a `worker` process that can be killed, `vocabulary` is the tokenizer as bytes, `constraint` is a sequence's.
"""
