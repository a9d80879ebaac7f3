"""Compiles the CPU kernels when corellm is built or installed from source; without a compiler it does without them."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUILD = Path("kernels", "corellm_kernels", "cpu", "build.py")


class CompiledKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the libraries to wheels, and makes them for the platform they were compiled on."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say in one line what came of it."""
        if self.target_name != "wheel":
            return
        build = runpy.run_path(str(Path(self.root) / _BUILD))
        self.app.display_info(build["build"]())
        if version == "standard" and build["is_current"]():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{platform}"
