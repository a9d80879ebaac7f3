"""Stand-ins for what pages name and tests do not have: published checkpoints, and the reader's own media.

A published model is replaced by a tiny random one of the same architecture, so commands that name it really run.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file

import corellm_blip.tiny
import corellm_blip2.instruct.tiny
import corellm_blip2.tiny
import corellm_chameleon.tiny
import corellm_deepseek_vl2.tiny
import corellm_florence2.tiny
import corellm_fuyu.tiny
import corellm_gemma3.tiny
import corellm_git.tiny
import corellm_idefics.tiny
import corellm_idefics2.tiny
import corellm_internvl.tiny
import corellm_kosmos2.kosmos2_5.tiny
import corellm_kosmos2.tiny
import corellm_llava.tiny
import corellm_mllama.tiny
import corellm_molmo.tiny
import corellm_paligemma.tiny
import corellm_qwen_audio.tiny
import corellm_qwen_vl.original.tiny
import corellm_qwen_vl.tiny
import corellm_transformers.tiny
import corellm_voxtral.tiny

ROOT = Path(__file__).resolve().parents[2]


def _pickled_qwen_vl(path: Path) -> None:
    """Write the original Qwen-VL as published, with pickled weights."""
    corellm_qwen_vl.original.tiny.make_tiny_checkpoint(path, n_queries=16)
    for file in path.glob("*.safetensors"):
        torch.save(load_file(file), path / "pytorch_model.bin")
        file.unlink()


def _deepseek_vl(path: Path) -> None:
    """Write a DeepSeek-VL, with the plugin that CONTRIBUTING makes while its page is followed."""
    importlib.import_module("corellm_deepseek_vl.tiny").make_tiny_checkpoint(path)


PUBLISHED: dict[str, Callable[[Path], object]] = {
    "HuggingFaceM4/idefics-9b-instruct": corellm_idefics.tiny.make_tiny_checkpoint,
    "HuggingFaceM4/idefics2-8b": corellm_idefics2.tiny.make_tiny_checkpoint,
    "OpenGVLab/InternVL3-1B": corellm_internvl.tiny.make_tiny_checkpoint,
    "Qwen/Qwen-VL-Chat": _pickled_qwen_vl,
    "Qwen/Qwen2-Audio-7B-Instruct": corellm_qwen_audio.tiny.make_tiny_checkpoint,
    "Qwen/Qwen2.5-VL-3B-Instruct": partial(
        corellm_qwen_vl.tiny.make_tiny_checkpoint, architecture="Qwen2_5_VLForConditionalGeneration"
    ),
    "Salesforce/blip-image-captioning-base": corellm_blip.tiny.make_tiny_checkpoint,
    "Salesforce/blip-image-captioning-large": partial(corellm_blip.tiny.make_tiny_checkpoint, tower_width=96),
    "Salesforce/blip2-opt-2.7b": corellm_blip2.tiny.make_tiny_checkpoint,
    "Salesforce/instructblip-vicuna-7b": corellm_blip2.instruct.tiny.make_tiny_checkpoint,
    "adept/fuyu-8b": corellm_fuyu.tiny.make_tiny_checkpoint,
    "florence-community/Florence-2-base": corellm_florence2.tiny.make_tiny_checkpoint,
    "google/gemma-3-4b-it": corellm_gemma3.tiny.make_tiny_checkpoint,
    "deepseek-ai/deepseek-vl2-tiny": corellm_deepseek_vl2.tiny.make_tiny_checkpoint,
    "allenai/Molmo-7B-D-0924": corellm_molmo.tiny.make_tiny_checkpoint,
    "deepseek-community/deepseek-vl-1.3b-chat": _deepseek_vl,
    "facebook/chameleon-7b": corellm_chameleon.tiny.make_tiny_checkpoint,
    "google/paligemma2-3b-mix-224": partial(
        corellm_paligemma.tiny.make_tiny_checkpoint, decoder="gemma2", sliding_window=512
    ),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": corellm_mllama.tiny.make_tiny_checkpoint,
    "microsoft/git-base-coco": corellm_git.tiny.make_tiny_checkpoint,
    "microsoft/git-base-textvqa": corellm_git.tiny.make_tiny_checkpoint,
    "microsoft/kosmos-2-patch14-224": corellm_kosmos2.tiny.make_tiny_checkpoint,
    "microsoft/kosmos-2.5": corellm_kosmos2.kosmos2_5.tiny.make_tiny_checkpoint,
    "mistralai/Voxtral-Mini-3B-2507": corellm_voxtral.tiny.make_tiny_checkpoint,
    "openai/whisper-tiny": partial(
        corellm_transformers.tiny.make_tiny_checkpoint, architecture="WhisperForConditionalGeneration"
    ),
    "llava-hf/llava-1.5-7b-hf": corellm_llava.tiny.make_tiny_checkpoint,
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": partial(
        corellm_transformers.tiny.make_tiny_checkpoint, architecture="LlavaOnevisionForConditionalGeneration"
    ),
}
"""`{hub name: function that writes a tiny checkpoint of the same architecture}`, for all models that pages name."""

IMAGES = {
    "image.png": "407.png",
    "star.png": "star.png",
    "cat.jpg": "star.png",
    "before.jpg": "star.png",
    "after.jpg": "circles.png",
}
VIDEOS = {"clip.mp4": "square.mp4"}
AUDIO = ("sound.flac", "birds.flac", "glass.mp3", "speech.wav")


def write_published(name: str, path: Path) -> None:
    """Write the stand-in for a published checkpoint.

    Raises:
        AssertionError: the architecture of this checkpoint is not known.
    """
    assert name in PUBLISHED, f"{name}: add it to PUBLISHED in tests/docs/stand_ins.py, with its architecture"
    PUBLISHED[name](path)


def write_media(here: Path) -> None:
    """Write the media files that pages name but the repository does not have."""
    for name, source in IMAGES.items():
        Image.open(ROOT / "demo" / "images" / source).convert("RGB").save(here / name)
    for name, source in VIDEOS.items():
        shutil.copyfile(ROOT / "demo" / "videos" / source, here / name)
    tone = 0.3 * np.sin(np.arange(16_000) / 16_000 * 2 * np.pi * 440)
    for name in AUDIO:
        soundfile.write(here / name, tone, 16_000)
