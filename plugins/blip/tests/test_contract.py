"""BLIP keeps the contract."""

from corellm_blip.contract import TestBlip as TestBlip
