"""Whether two tokenizers have the same tokens: a draft model must say what the model would understand."""

from __future__ import annotations

from typing import Any

from corellm.errors import ConfigError


def check_vocabulary(target: Any, draft: Any, model: str) -> None:
    """Return if a draft model's tokenizer has the tokens of the model's; special ones it may lack (`<image>`).

    Args:
        target, draft: tokenizers of the model and of the draft model.
        model: the draft model's name.

    Raises:
        ConfigError: it has others; names the first.
    """
    wanted, found = target.get_vocab(), draft.get_vocab()
    special = {*target.all_special_ids, *getattr(target, "added_tokens_decoder", ())}
    at = {number: token for token, number in found.items()}
    for token, number in sorted(wanted.items(), key=lambda entry: entry[1]):
        is_lacking = token not in found and number not in at
        if found.get(token) != number and not (is_lacking and number in special):
            there = f"{at[number]!r:.100}" if number in at else "none"
            elsewhere = f"; {token!r:.100} is its token {found[token]}" if token in found else ""
            raise ConfigError(
                f"speculative_config: the draft model {model} has another vocabulary: token {number} is "
                f"{token!r:.100}, and there {there}{elsewhere}; take one with the model's tokenizer"
            )
