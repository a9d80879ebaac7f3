"""LoRA adapters: many on one loaded model, chosen by each request."""

from __future__ import annotations

__version__ = "0.2.0"
