"""All mutants, in the order of the contract's parts."""

from __future__ import annotations

from tests.mutants import answers, embeddings, identity, limits, packaging, placeholders, processing

MUTANTS = (
    *packaging.MUTANTS,
    *processing.MUTANTS,
    *limits.MUTANTS,
    *placeholders.MUTANTS,
    *embeddings.MUTANTS,
    *identity.MUTANTS,
    *answers.MUTANTS,
)
CONTRACTS = tuple(dict.fromkeys(mutant.contract for mutant in MUTANTS))
"""The contract classes that mutants are examined by."""
