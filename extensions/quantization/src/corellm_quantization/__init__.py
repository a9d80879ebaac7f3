"""Weights of 4 bits: rounded when a checkpoint is loaded, or as it has them."""

from __future__ import annotations

__version__ = "0.2.0"
