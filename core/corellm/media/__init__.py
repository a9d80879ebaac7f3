"""Media: files, bytes and arrays to pixels and frames. Importing this imports neither numpy nor a decoder.

`image` reads one image, in any accepted form from a path to a tensor; `frames` makes a `video` of frames in memory.
Audio, and videos in files, are an extension's, `corellm-media`. Beside them:

    files           bytes of paths and `data:` URLs, and which formats are accepted
    pixels          pixels of any mode and depth to 8-bit RGB
    type_checks     what is an array, a tensor or an image, without importing their libraries
    pool            decodes files in child processes: `worker` is the child's side, `reply` checks what it returns

Knows no requests and no models.
"""
