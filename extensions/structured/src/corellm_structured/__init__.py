"""Outputs of a given form: a constraint of the kind `structured`, by llguidance.

In reading order: `forms` makes a grammar of what a request asks for, `grammars` compiles it, `checking` does so first
in a `worker` process that can be killed, `vocabulary` is the tokenizer as bytes, `reasoning` what may come before a
form, `constraint` is a sequence's.
"""
