"""Tiny random ColBERT checkpoints, in the layouts of those that publish them, with a tokenizer like BERT's."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from corellm.tiny_checkpoints import randomize_weights
from extensions.pooling.tests.text_encoders.checkpoints import SIZES

WIDTH = 12
DENSE = {
    "in_features": 32, "out_features": WIDTH, "bias": False, "activation_function": "torch.nn.modules.linear.Identity",
}  # fmt: skip
LENGTHS = {"query_length": 14, "document_length": 30}
QUERIES = ("What is red?", "why", "A blue, blue square")
DOCUMENTS = ("A red circle: a square!", "One, two, three.", "?!", "Nothing")
ALL_PYLATE: dict[str, Any] = {
    "model_type": "ColBERT", "similarity_fn_name": "MaxSim", "prompts": {}, "default_prompt_name": None,
    "query_prefix": "[Q] ", "document_prefix": "[D] ", "do_query_expansion": True,
    "attend_to_expansion_tokens": False, "skiplist_words": list(string.punctuation), **LENGTHS,
}  # fmt: skip
"""What PyLate writes into `config_sentence_transformers.json`."""


def make_colbert_tokenizer() -> Any:
    """Return a tokenizer that lowers texts and has single letters, marks without a use, and a mask."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase
    words = ["[unused0]", "[unused1]", *string.punctuation, *letters, *(f"##{letter}" for letter in letters), "red"]
    ids = {word: index for index, word in enumerate([*special, *words])}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)


def make_encoder(path: Path, architecture: str, tokenizer: Any, **config: Any) -> Any:
    """Write an encoder and its tokenizer; returns the encoder."""
    cls = getattr(transformers, architecture)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = cls(cls.config_class(**{**SIZES, **ids, **config}))
    randomize_weights(model, 0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model


def random_projection(*shape: int) -> torch.Tensor:
    """Return the weights of a projection."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def make_pylate(path: Path, architecture: str = "BertModel", *, encoder: Any = None, **stated: Any) -> Path:
    """Write a checkpoint as PyLate does; `stated` is of its configuration, where None leaves a key out."""
    tokenizer = make_colbert_tokenizer()
    tokenizer.add_tokens(["[Q] ", "[D] "])
    make_encoder(path, architecture, tokenizer, **(encoder or {}))
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": folder, "type": kind} for i, (folder, kind) in enumerate(modules)
        ],
        "1_Dense/config.json": DENSE,
        "sentence_bert_config.json": {"max_seq_length": LENGTHS["document_length"] - 1, "do_lower_case": False},
        "config_sentence_transformers.json": {
            name: value for name, value in {**ALL_PYLATE, **stated}.items() if value is not None
        },
    }
    (path / "1_Dense").mkdir()
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    save_file({"linear.weight": random_projection(WIDTH, 32)}, path / "1_Dense" / "model.safetensors")
    return path


def make_stanford(path: Path, **metadata: Any) -> Path:
    """Write a checkpoint as Stanford's ColBERT does; `metadata` is of `artifact.metadata`."""
    make_encoder(path, "BertModel", make_colbert_tokenizer())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    weights = {f"bert.{name}": tensor for name, tensor in load_file(path / "model.safetensors").items()}
    weights["linear.weight"] = random_projection(WIDTH, 32)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    stated = {
        "query_maxlen": LENGTHS["query_length"], "doc_maxlen": LENGTHS["document_length"], "mask_punctuation": True,
        "attend_to_mask_tokens": False, "query_token_id": "[unused0]", "doc_token_id": "[unused1]",
        "similarity": "cosine", "interaction": "colbert",
    }  # fmt: skip
    (path / "artifact.metadata").write_text(json.dumps(stated | metadata))
    return path
