"""Audio of any length to text: cut as the model's family has it, asked for piece by piece, and joined.

In reading order: `reading` is what a transcription is asked for and how one is begun; `windows` reads audio by the
times that a model tells, as transformers' `generate` does, with outputs held to the order of times by `time_order`;
`retries` says which texts are good enough, by what a `second_look` at a window finds, and `words` when words are said.
`pieces` cuts audio where it is silent. `segments` is what comes out, also as subtitles; `calls` has `LLM.transcribe`. A
server runs readings, too.
"""

from __future__ import annotations

from corellm_speech.segments import Segment, Transcript, Word, srt, vtt

__all__ = ["Segment", "Transcript", "Word", "srt", "vtt"]
