"""A tiny random checkpoint of InstructBLIP with videos, made without downloads: for contract tests and experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from corellm.tiny_checkpoints import layer_sizes, randomize_weights, train_tokenizer, write_json
from corellm_blip2.instruct.tiny import decoder_config, instruction_tokenizer

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "OPT": {"text": "opt"},
    "another number of queries": {"num_query_tokens": 5},
    "another video token": {"vocab_size": 370},
    "a larger tower": {"image_size": 84},
    "a processor that does not state the number of queries": {"stated_query_tokens": None},
    "settings of frames in a file of their own": {"settings_in": "video_preprocessor_config.json"},
    "settings of frames where InstructBLIP has those of images": {"settings_in": "preprocessor_config.json"},
}
"""`{what is different: arguments of make_tiny_checkpoint}`: the contract tests each."""

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "T5, an encoder-decoder": {"text": "t5"},
    "a configuration without a video token": {"names_video_token": False},
    "a processor with another number of queries than the model's": {"stated_query_tokens": 4},
    "frames that keep their size": {"settings": {"do_resize": False}},
    "frames that keep their sides' ratio": {"settings": {"size": {"shortest_edge": 56}}},
}
"""`{what cannot be served: arguments of make_tiny_checkpoint}`: the contract requires an error at load for each."""


def make_tiny_checkpoint(
    path: str | Path,
    seed: int = 0,
    *,
    text: Literal["llama", "opt", "t5"] = "llama",
    names_video_token: bool = True,
    num_query_tokens: int = 8,
    stated_query_tokens: int | Literal["the model's"] | None = "the model's",
    image_size: int = 56,
    vocab_size: int = 400,
    instruction_positions: int = 512,
    settings: Mapping[str, Any] | None = None,
    settings_in: str = "processor_config.json",
) -> Path:
    """Write a checkpoint in the Hugging Face layout into `path`, and return that; `seed` is the weights'.

    Args:
        text: the text model.
        names_video_token: whether config.json says which token is the video's.
        num_query_tokens: tokens of a frame.
        stated_query_tokens: the same in the processor's configuration.
        image_size: side of the tower's square, in pixels; a multiple of 14, the patch.
        vocab_size: of the tokenizer without the video token, which comes last.
        instruction_positions: most tokens of an instruction.
        settings: of the frames, laid over the usual ones.
        settings_in: the file that has them.
    """
    import transformers

    path = Path(path)
    tokenizer = train_tokenizer([], vocab_size=vocab_size, bos="<s>", eos="</s>", pad="<pad>", add_bos=True)
    tokenizer.add_tokens([transformers.AddedToken("<video>", normalized=False, special=True)], special_tokens=True)
    instructions = instruction_tokenizer()
    qformer = {"vocab_size": len(instructions), "max_position_embeddings": instruction_positions}
    config = transformers.InstructBlipVideoConfig(
        vision_config=layer_sizes(image_size=image_size, patch_size=14),
        qformer_config=layer_sizes(48, **qformer),
        text_config=decoder_config(text, tokenizer),
        num_query_tokens=num_query_tokens,
        video_token_index=tokenizer.convert_tokens_to_ids("<video>") if names_video_token else None,
    )
    model = transformers.InstructBlipVideoForConditionalGeneration(config)
    randomize_weights(model, seed)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    instructions.save_pretrained(path / "qformer_tokenizer")
    frames = {
        "video_processor_type": "InstructBlipVideoVideoProcessor",
        "size": {"height": image_size, "width": image_size},
        **(settings or {}),
    }
    processor = {
        "processor_class": "InstructBlipVideoProcessor",
        "num_query_tokens": num_query_tokens if stated_query_tokens == "the model's" else stated_query_tokens,
    }
    # transformers' processor writes these itself, but it cannot be made without torchvision
    files = {"processor_config.json": processor, settings_in: frames}
    if settings_in == "processor_config.json":
        files = {settings_in: {**processor, "video_processor": frames}}
    write_json(path, files)
    return path
