"""Media: files and bytes to pixels, frames and samples. Imports neither numpy nor a decoder.

`image`, `audio` and `video` read one item each, `pool` has files decoded in child processes. Knows no requests and no
models.
"""
