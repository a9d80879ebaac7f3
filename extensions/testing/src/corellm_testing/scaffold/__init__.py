"""Makes new plugins: a copy of an installed one under another name, as a complete distribution.

Works on installed distributions' metadata and source text alone: knows no plugin and imports none.
"""
