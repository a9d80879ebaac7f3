"""What corellm calls of this distribution: commands, engines, parsers, fetching. Imports no library of the server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from corellm.hookspecs import hookimpl

if TYPE_CHECKING:
    from corellm.fetch_settings import FetchSettings
    from corellm_server.fetching.remote_media import RemoteMedia
    from corellm_server.offers import EngineOffer


class Commands:
    """`corellm serve`, `batch` and `bench`; several engines; fetching; known forms of tool calls and of reasoning."""

    @hookimpl(tryfirst=True)  # before strangers: the first to register a name has it
    def register_commands(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        """Add the commands."""
        from corellm_server.commands import batch, bench, serve

        for command in (serve, batch, bench):
            command.add_parser(subparsers)

    @hookimpl(tryfirst=True)
    def offer_engine_client(self) -> EngineOffer:
        """Return several engines on this machine."""
        from corellm_server.data_parallel.offer import OFFER

        return OFFER

    @hookimpl
    def offer_fetching(self, settings: FetchSettings) -> RemoteMedia:
        """Return what fetches for conversations in Python."""
        from corellm_server.fetching.remote_media import RemoteMedia

        return RemoteMedia(settings)

    @hookimpl(tryfirst=True)
    def register_tool_parsers(self) -> dict[str, str]:
        """Return those of families whose form was published."""
        from corellm_server.tools import PARSERS

        return PARSERS

    @hookimpl(tryfirst=True)
    def register_reasoning_parsers(self) -> dict[str, str]:
        """Return those of families whose form was published."""
        from corellm_server.reasoning import PARSERS

        return PARSERS
