"""The `demo` model before training: tokenizer, chat template, image processor and configuration.

Knows nothing of scenes or of training; the tokenizer is trained on texts it is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GenerationConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SIDE = 64  # every image is resized to SIDE x SIDE, whatever its shape: nothing is cropped
PATCH = 8
GRID = SIDE // PATCH
NUM_IMAGE_TOKENS = GRID * GRID

PAD, BOS, EOS, IMAGE = range(4)  # token ids, in the order of SPECIAL_TOKENS
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<image>"]

# "USER: <image>\n{question} ASSISTANT: {answer}</s>USER: {question} ASSISTANT:" as in LLaVA; the tokenizer adds <s>.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif -%}
{%- if message['content'] is string %}{{ message['content'] }}{% else -%}
{%- for part in message['content'] if part['type'] == 'image' %}{{ '<image>\\n' }}{% endfor -%}
{%- for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor -%}
{%- endif -%}
{{- '</s>' if message['role'] == 'assistant' else ' ' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif -%}
"""


def prompt(question: str) -> str:
    """Return the prompt of a first question about an image."""
    return f"USER: <image>\n{question} ASSISTANT:"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Return a byte-level BPE with one token for each digit."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return core


def build_tokenizer(core: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=["<image>"],
        padding_side="left",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    square = {"height": SIDE, "width": SIDE}
    images = CLIPImageProcessorPil(size=square, do_center_crop=False, crop_size=square, default_to_square=True)
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLIP's class token, which "default" drops
        chat_template=CHAT_TEMPLATE,
    )


def build_model(vocab_size: int) -> LlavaForConditionalGeneration:
    """Return a model with random weights and about 1.2 million parameters."""
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=32,
        hidden_act="quick_gelu",
    )
    text = LlamaConfig(
        hidden_size=128,
        intermediate_size=320,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab_size,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        image_seq_length=NUM_IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
        bos_token_id=BOS,
        pad_token_id=PAD,
        eos_token_id=EOS,
    )
    model = LlavaForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD, max_new_tokens=32, do_sample=False
    )
    return model


def save(model: LlavaForConditionalGeneration, processor: Any, folder: str) -> None:
    """Write a Hugging Face checkpoint with bfloat16 weights; `model` itself keeps its dtype."""
    copy = build_model(model.config.text_config.vocab_size)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
