"""llama.cpp, by its C interface, on GGUF files, in its own environment.

`python -m bench.peers.engines.llamacpp TYPE SOURCE TARGET` rounds a file's weights as its own tool does.
"""

from __future__ import annotations

import ctypes
import io
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from PIL import Image

from bench.peers.worker import Job
from bench.peers.workloads import Request

_CONTEXT = 32768
"""Tokens of all sequences: the small model's in a gigabyte and the medium one's."""
_BATCH = 2048
_TYPES = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}


class LlamaCpp:
    """A model and a context of 32 sequences: all prompts are read, then each step gives every sequence a token."""

    def __init__(self, job: Job) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(job.model.encode(), llama_cpp.llama_model_default_params())
        if self._model is None:
            raise RuntimeError(f"{job.model} could not be loaded")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._size = llama_cpp.llama_vocab_n_tokens(self._vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_seq_max, params.kv_unified = _CONTEXT, _BATCH, 32, True
        params.n_threads = params.n_threads_batch = job.threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        options = mtmd.mtmd_context_params_default()
        options.use_gpu, options.n_threads, options.print_timings = False, job.threads, False
        tower = str(Path(job.model).with_name("mmproj.gguf")).encode()
        self._tower = mtmd.mtmd_init_from_file(tower, self._model, options)

    def generate(self, requests: list[Request], tokens: int) -> list[str]:
        ids = self._run(requests, tokens, [])
        return [self._text(some) for some in ids]

    def stream(self, request: Request, tokens: int) -> list[float]:
        times = list[float]()
        self._run([request], tokens, times)
        return times

    def _run(self, requests: list[Request], tokens: int, times: list[float]) -> list[list[int]]:
        """Return the greedy tokens of each request; note when each step's were there."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        if any(request.image for request in requests):
            last, lengths = [], []
            for sequence, request in enumerate(requests):
                lengths.append(self._read_image(sequence, request))
                last.append(self._best(-1))
        else:
            last, lengths = self._read_texts([self._ids(request.text) for request in requests])
        ids = [[token] for token in last]
        times.append(time.monotonic())
        for step in range(tokens - 1):
            rows = [(some[-1], lengths[i] + step, i, True) for i, some in enumerate(ids)]
            for some, token in zip(ids, self._decode(rows), strict=True):
                some.append(token)
            times.append(time.monotonic())
        return ids

    def _read_texts(self, prompts: list[list[int]]) -> tuple[list[int], list[int]]:
        """Read all prompts in batches as large as they may be; return each one's first token and its length."""
        rows = [
            (token, place, sequence, place == len(ids) - 1)
            for sequence, ids in enumerate(prompts) for place, token in enumerate(ids)
        ]  # fmt: skip
        last = list[int]()
        for start in range(0, len(rows), _BATCH):
            last += self._decode(rows[start : start + _BATCH])
        return last, [len(ids) for ids in prompts]

    def _read_image(self, sequence: int, request: Request) -> int:
        """Read a prompt with an image as its own helper does; return its length."""
        image = Image.open(io.BytesIO(request.image or b"")).convert("RGB")
        pixels = np.ascontiguousarray(image)
        bitmap = mtmd.mtmd_bitmap_init(image.width, image.height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        text = request.text.encode().replace(b"<image>", mtmd.mtmd_default_marker())
        chunks = mtmd.mtmd_input_chunks_init()
        told = mtmd.mtmd_input_text(text, len(text), True, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        self._check(mtmd.mtmd_tokenize(self._tower, chunks, ctypes.byref(told), bitmaps, 1))
        length = llama_cpp.llama_pos()
        self._check(
            mtmd.mtmd_helper_eval_chunks(
                self._tower, self._context, chunks, 0, sequence, _BATCH, True, ctypes.byref(length)
            )
        )
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        return length.value

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run a step of (token, place, sequence, whether its output is wanted); return the outputs' best tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, place, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, place, 1, wanted
            batch.seq_id[i][0] = sequence
        self._check(llama_cpp.llama_decode(self._context, batch))
        return [self._best(i) for i, row in enumerate(rows) if row[3]]

    def _best(self, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._size,)).argmax())

    def _ids(self, text: str) -> list[int]:
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        return list(ids[: llama_cpp.llama_tokenize(self._vocab, raw, len(raw), ids, len(ids), True, True)])

    def _text(self, ids: list[int]) -> str:
        some, room = (llama_cpp.llama_token * len(ids))(*ids), ctypes.create_string_buffer(64 * len(ids))
        length = llama_cpp.llama_detokenize(self._vocab, some, len(ids), room, len(room), True, False)
        return room.raw[:length].decode(errors="replace")

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(f"llama.cpp says {code}")


def load(job: Job) -> LlamaCpp:
    """The engine."""
    return LlamaCpp(job)


def main() -> int:
    """Round a file's weights."""
    name, source, target = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = _TYPES[name]
    return llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))


if __name__ == "__main__":
    sys.exit(main())
