"""The `demo-video` model before training: tokenizer, chat template, processors and configuration.

Knows nothing of scenes or of training; the tokenizer is trained on texts it is given. The operations of the video
processor are in `frames.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    Qwen2Tokenizer,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

PATCH = 8
MERGE = 2
FRAMES = 8  # sampled of each video that has as many
FRAMES_PER_PATCH = 2
MIN_PIXELS, MAX_PIXELS = 3072, 5120  # of a frame: 64 x 64 for a square, 80 x 48 for 16:9
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)

# Token ids, in the order of SPECIAL_TOKENS.
PAD, IM_START, IM_END, VISION_START, VISION_END, VISION_PAD, IMAGE, VIDEO = range(8)
SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]

# chatml as Qwen2-VL writes it, without its default system message.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part['type'] == 'video' -%}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part['type'] == 'text' -%}{{ part['text'] }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""


def prompt(question: str) -> str:
    """Return the prompt of a first question about a video."""
    video = "<|vision_start|><|video_pad|><|vision_end|>"
    return f"<|im_start|>user\n{video}{question}<|im_end|>\n<|im_start|>assistant\n"


def train_tokenizer(texts: Iterable[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return vocabulary and merges of a byte-level BPE over words as Qwen2's tokenizer splits them."""
    core = Tokenizer(models.BPE())
    qwen = Qwen2Tokenizer().backend_tokenizer
    core.normalizer, core.pre_tokenizer, core.decoder = qwen.normalizer, qwen.pre_tokenizer, qwen.decoder
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=448,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    trained = json.loads(core.to_str())["model"]
    return trained["vocab"], [tuple(pair) for pair in trained["merges"]]


def build_tokenizer(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Qwen2Tokenizer:
    tokenizer = Qwen2Tokenizer(
        vocab=vocab,
        merges=merges,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[1:],
        padding_side="left",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(vocab_size: int) -> Qwen2VLForConditionalGeneration:
    """Return a model with random weights and about 1.1 million parameters."""
    config = Qwen2VLConfig(
        vision_config={
            "depth": 3,
            "embed_dim": 96,
            "num_heads": 3,
            "mlp_ratio": 3,
            "hidden_size": 128,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES_PER_PATCH,
        },
        text_config={
            "hidden_size": 128,
            "intermediate_size": 320,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": vocab_size,
            "max_position_embeddings": 1024,
            # Time, height and width use the 4 fastest, the next 6 and the 6 slowest of 16 frequencies. A grid is 4
            # steps wide; with the usual base the slowest frequencies hardly differ between left and right.
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": PAD,
            "eos_token_id": IM_END,
            "pad_token_id": PAD,
            "tie_word_embeddings": True,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
    )
    model = Qwen2VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        bos_token_id=PAD, eos_token_id=IM_END, pad_token_id=PAD, max_new_tokens=32, do_sample=False
    )
    return model


def save(model: Qwen2VLForConditionalGeneration, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Write a Hugging Face checkpoint with bfloat16 weights; `model` itself keeps its dtype."""
    copy = build_model(len(tokenizer))
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    common = {
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "patch_size": PATCH,
        "temporal_patch_size": FRAMES_PER_PATCH,
        "merge_size": MERGE,
        "image_mean": list(MEAN),
        "image_std": list(STD),
    }
    Qwen2VLImageProcessorPil(**common).save_pretrained(folder)
    # Transformers' video processor cannot be built without torchvision; this is what it would write.
    video = common | {
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "do_sample_frames": True,
        "fps": 2,
        "min_frames": FRAMES,
        "max_frames": FRAMES,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "video_processor_type": "Qwen2VLVideoProcessor",
    }
    text = json.dumps(video, indent=2, sort_keys=True) + "\n"
    (folder / "video_preprocessor_config.json").write_text(text, encoding="utf-8")
