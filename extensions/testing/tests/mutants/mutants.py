"""All mutants, by the contract's parts and in their order."""

from __future__ import annotations

from extensions.testing.tests.mutants import (
    arguments,
    checkpoints,
    conversations,
    embeddings,
    identity,
    lengths,
    limits,
    media,
    outputs,
    packaging,
    placeholders,
    requests,
    tensors,
    timing,
    tokens,
    visibility,
)

PARTS = {
    "Packaging": packaging.MUTANTS,
    "Tokens": tokens.MUTANTS,
    "Tensors": tensors.MUTANTS,
    "Arguments": arguments.MUTANTS,
    "Requests": requests.MUTANTS,
    "Limits": limits.MUTANTS,
    "Media": media.MUTANTS,
    "Timing": timing.MUTANTS,
    "Lengths": lengths.MUTANTS,
    "Placeholders": placeholders.MUTANTS,
    "Conversations": conversations.MUTANTS,
    "Embeddings": embeddings.MUTANTS,
    "Visibility": visibility.MUTANTS,
    "Identity": identity.MUTANTS,
    "Checkpoints": checkpoints.MUTANTS,
    "Outputs": outputs.MUTANTS,
}
MUTANTS = tuple(mutant for part in PARTS.values() for mutant in part)
CONTRACTS = tuple(dict.fromkeys(mutant.contract for mutant in MUTANTS))
"""The contract classes that mutants are examined by."""
