"""Names of tensors in files, and of the parameters that transformers makes of them."""

from __future__ import annotations

from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key


class ModelNames:
    """Finds the parameters of a transformers model by the names that tensors have in its files."""

    def __init__(self, model: Any) -> None:
        mapping = get_model_conversion_mapping(model)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._prefix, self._known = model.base_model_prefix, model.state_dict()

    def parameter(self, tensor: str) -> str | None:
        """Return the parameter that a tensor becomes as it is; None for none, and where several are made into one."""
        name, converted = rename_source_key(tensor, self._renamings, self._converters, self._prefix, self._known)
        return name if converted is None and name in self._known else None
