"""Which texts fit which images: cosines of their embeddings, as a table, as a drawing, as files.

Knows vectors and names; how they are embedded is `LLM.embed`'s.
"""
