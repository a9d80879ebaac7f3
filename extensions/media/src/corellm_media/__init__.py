"""Audio, and videos in files, for corellm: what decodes them, in processes that may crash.

    reader              what the engine asks for: `audio` to samples, `video` files to frames on demand
    worker              the child processes that decode; `pooled_audio` and `pooled_video` are this process's side
    audio               samples and files; `audio_files` checks that a file is whole, `audio_streams` is FFmpeg's side
    containers          opens files with FFmpeg, for both

Importing it imports neither numpy nor a decoder. Knows no requests and no models.
"""
