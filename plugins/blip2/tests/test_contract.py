"""BLIP-2 keeps the contract."""

from corellm_blip2.contract import TestBlip2 as TestBlip2
