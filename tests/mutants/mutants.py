"""All mutants, in the order of the contract's parts."""

from __future__ import annotations

from tests.mutants import (
    answers,
    conversations,
    embeddings,
    identity,
    limits,
    media,
    packaging,
    placeholders,
    requests,
    tensors,
    tokens,
)

MUTANTS = (
    *packaging.MUTANTS,
    *tokens.MUTANTS,
    *tensors.MUTANTS,
    *requests.MUTANTS,
    *limits.MUTANTS,
    *media.MUTANTS,
    *placeholders.MUTANTS,
    *conversations.MUTANTS,
    *embeddings.MUTANTS,
    *identity.MUTANTS,
    *answers.MUTANTS,
)
CONTRACTS = tuple(dict.fromkeys(mutant.contract for mutant in MUTANTS))
"""The contract classes that mutants are examined by."""
