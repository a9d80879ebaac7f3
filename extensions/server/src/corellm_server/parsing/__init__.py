"""Tells apart what a model writes in one text: reasoning, calls of tools, and text for the reader.

    pieces      what parsers return
    reader      the machine that all parsers share: pieces of a text come in, a parser reads as if it were whole
    json_reader JSON that comes in pieces
    names       parsers by name, of this distribution and of extensions, and which one a model has
    output      one output's chain of parsers

`corellm_server.tools` and `corellm_server.reasoning` have the forms of families. Pure Python: no server, no tokenizer.
"""
