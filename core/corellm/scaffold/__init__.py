"""New plugins: a copy of an installed one under a name of its own, complete with what its distribution needs.

Works on installed distributions' metadata and source text alone: no plugin is known here, and none is imported.
"""
