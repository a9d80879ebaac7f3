"""Media: files, bytes and arrays to pixels, frames and samples. Importing this imports neither numpy nor a decoder.

`image`, `audio` and `video` read one item each, in any accepted form from a path to a tensor. Beside them:

    files           bytes of paths and `data:` URLs, and which formats are accepted
    pixels          pixels of any mode and depth to 8-bit RGB
    audio_files     whether an audio file is whole; `audio_streams` decodes what only FFmpeg reads
    type_checks     what is an array, a tensor or an image, without importing their libraries
    pool            decodes files in child processes: `worker` is the child's side, `reply` checks what it returns,
                    `pooled_video` gets the frames of a video when they are read

Knows no requests and no models.
"""
