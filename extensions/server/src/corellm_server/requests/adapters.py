"""The bodies of `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from corellm_server.requests.body import Body

Name = Annotated[str, Field(min_length=1, max_length=256)]


class LoadAdapterRequest(Body):
    """`POST /v1/load_lora_adapter`."""

    lora_name: Name
    """Name by which clients ask for it, as for a model."""
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Directory of the adapter, below that of `--allow-runtime-lora-updating`."""
    load_inplace: bool = False
    """Take the place of an adapter of this name, for requests that come from now on."""


class UnloadAdapterRequest(Body):
    """`POST /v1/unload_lora_adapter`."""

    lora_name: Name
    """Name of an adapter."""
    lora_int_id: int | None = None
    """Number of the adapter; not used."""
