"""Which layers of a model are written with fewer bits, and how. Knows no files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.nn.modules.conv import _ConvNd

from corellm.errors import ConfigError
from corellm.plain_linears import plain_linears
from corellm.quantization import is_quantizable
from corellm_quantization.int4 import GROUP
from corellm_quantization.weight_reads import is_run
from corellm_quantization.writing.layout import Groups, Layout, Rows

BITS = (4, 8)
GROUPS = (32, 64, 128)
"""Sizes of groups that other engines read, too."""
_LAYER = re.compile(r"\.\d+\..*")


@dataclass(frozen=True)
class Wanted:
    """What the user wants.

    Attributes:
        bits: of the decoder's linear layers, 4 or 8.
        group: weights that share a scale, of those of 4 bits.
        zeros: whether they share a zero, too: less error, and fewer readers.
        eight: regular expressions; layers in whose names one is found have 8 bits, the output layer, too.
        ignore: the same; such layers stay as they are.

    Raises:
        ConfigError: a value is none of these.
    """

    bits: int = 4
    group: int = GROUP
    eight: Sequence[str] = ()
    ignore: Sequence[str] = ()
    zeros: bool = False

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ConfigError(f"bits must be 4 or 8, got {self.bits!r}")
        if self.group not in GROUPS:
            raise ConfigError(f"group must be one of {', '.join(map(str, GROUPS))}, got {self.group!r}")
        if self.bits != Groups.bits and (self.zeros or self.group != GROUP):
            raise ConfigError("group and zeros are for weights of 4 bits; leave them out with 8 bits")
        for pattern in (*self.eight, *self.ignore):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"{pattern!r:.100} is no regular expression: {error}") from error

    def layout(self, name: str, *, is_output: bool) -> Layout | None:
        """Return how a layer that can be rounded is written; None if it stays as it is."""
        if _found(self.ignore, name):
            return None
        if _found(self.eight, name):
            return Rows()
        if is_output:
            return None
        return Groups(self.group, self.zeros) if self.bits == Groups.bits else Rows()


@dataclass(frozen=True)
class Choice:
    """A model's linear layers, by name.

    Attributes:
        written: those that are rounded, and how.
        others: those that stay as they are.
        no_linears: what is none here and may be one elsewhere, and stays: names of routers, as modules and as in files,
            and regular expressions for experts, as compressed-tensors has them.
    """

    written: Mapping[str, Layout] = field(default_factory=dict)
    others: Sequence[str] = ()
    no_linears: Sequence[str] = ()

    @property
    def ignored(self) -> list[str]:
        """What the checkpoint states as left alone."""
        return [*self.others, *self.no_linears]

    def shown(self) -> str:
        """Return both in a line: layers of a stack are counted together."""
        bits = Counter(layout.bits for layout in self.written.values())
        made = ", ".join(f"{count} linear layers in {size} bits" for size, count in sorted(bits.items()))
        stacks = Counter(_LAYER.sub("", name) for name in self.others)
        kept = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in stacks.items())
        kept += ", experts" if any(name.startswith("re:") for name in self.no_linears) else ""
        return f"{made}; left as they are: embeddings, norms{', ' if kept else ''}{kept}"


def choose(
    model: nn.Module, decoder: nn.Module, output: nn.Module | None, readable: set[str], in_files: Mapping[str, str],
    wanted: Wanted,
) -> Choice:  # fmt: skip
    """Return what is rounded: linear layers of the decoder, and the output layer if it is named.

    Args:
        model: without values.
        decoder: the text decoder inside.
        output: the output layer.
        readable: names of layers that can be rounded and are read again.
        in_files: modules whose weight is a tensor of the files as it is, and the names that files have for them.
        wanted: what the user wants.

    Raises:
        ConfigError: a regular expression is found in no layer's name; no layer is left to be rounded.
    """
    names = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    inside = {id(module) for module in decoder.modules()} | {id(output)}
    run = {id(getattr(parent, child)) for parent, child in plain_linears(model) if is_run(parent, child)}
    open_to = {
        name: linear
        for name, linear in names.items()
        if name in readable and id(linear) in inside & run and is_quantizable(linear)
    }
    if not open_to:
        raise ConfigError(
            "no linear layer of the decoder has its weight in the files as others read it rounded (GPT-2's have a row "
            "for each input): use quantization='int8' or 'int4' when the model is loaded"
        )
    _require_found("--8-bits", wanted.eight, open_to, "linear layer that can be rounded")
    _require_found("--ignore", wanted.ignore, names, "linear layer")
    layouts = {name: wanted.layout(name, is_output=linear is output) for name, linear in open_to.items()}
    written = {
        name: layout for name, layout in layouts.items() if layout is not None and layout.fits(names[name].in_features)
    }
    if not written:
        raise ConfigError(
            "no linear layer of the decoder is left to be rounded: --ignore has them all, or none has inputs that are "
            f"whole groups of {wanted.group}"
        )
    return Choice(
        written, [name for name in names if name not in written], [*_no_linears(model, decoder, in_files, written)]
    )


def _no_linears(
    model: nn.Module, decoder: nn.Module, in_files: Mapping[str, str], written: Collection[str]
) -> Iterator[str]:
    """Yield names of a decoder's routers, and regular expressions that match its experts, whatever files call them.

    Transformers has a router's weight, and the weights of all experts of a layer, as tensors of modules that are no
    linear layers.
    """
    inside = set(decoder.modules())
    experts: dict[str, None] = {}
    for name, module in model.named_modules():
        if module not in inside or isinstance(module, (nn.Linear, nn.Embedding, _ConvNd)):
            continue
        weights = dict(module.named_parameters(recurse=False))
        has_rounded = any(path.startswith(f"{name}.") for path in written)
        if not has_rounded and any(weight.dim() == 3 and len(weight) > 1 for weight in weights.values()):
            experts[name.rpartition(".")[2]] = None
        elif "weight" in weights and weights["weight"].dim() == 2:
            yield from dict.fromkeys((name, in_files.get(name, name)))
    yield from (rf"re:.*\.{re.escape(name)}\..*" for name in experts)


def _require_found(option: str, patterns: Sequence[str], names: Mapping[str, nn.Module], kind: str) -> None:
    for pattern in patterns:
        if not any(_found([pattern], name) for name in names):
            raise ConfigError(
                f"{option} {pattern}: found in the name of no {kind}; such a name is "
                f"{max(names, key=len, default='none')}"
            )


def _found(patterns: Sequence[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
