"""The files around a plugin's modules: `pyproject.toml`, README, licence, the contract as a test, CI. Text only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from corellm import __version__
from corellm_testing.scaffold.names import PluginName
from corellm_testing.scaffold.original import Original

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "{camel} for corellm."
readme = "README.md"
requires-python = ">=3.11"
{license_line}license-files = ["LICENSE"]
classifiers = ["Typing :: Typed"]
dependencies = [{dependencies}]

[project.optional-dependencies]
test = ["corellm-testing>=0.2,<0.3"]

# The architecture in config.json = the adapter class
[project.entry-points."corellm.models"]
{entry_points}

[tool.hatch.build.targets.wheel]
packages = ["src/{package}"]

[tool.pytest.ini_options]
addopts = "--import-mode=importlib --strict-markers --tb=short"
testpaths = ["tests"]

[tool.ruff]
line-length = 120
target-version = "py311"
lint.select = ["E", "F", "W", "UP", "B"]

[tool.mypy]
strict = true
packages = ["{package}"]

[[tool.mypy.overrides]]
module = ["safetensors.*", "tokenizers.*", "transformers.*"]
ignore_missing_imports = true
follow_imports = "skip"
"""

_README = """\
# {distribution}

{camel} for corellm: {served}. Begun as a copy of {original}.

    pip install -e '.[test]'
    pytest                                   # the contract, on a tiny random checkpoint
    pytest --contract-quick                  # the same without its slow rules, while you edit
    corellm plugins                          # is it found, are its hooks valid

From anywhere, on what is installed: `pytest --pyargs {package}.contract`.

| file in `src/{package}/` | what to change |
|---|---|
| `tiny.py` | first: write your model's configuration, tokenizer and processor files, and few random weights |
| `__init__.py` | then the adapter: each hook says what your family does; `corellm/hookspecs.py` explains every one |
| `contract.py` | what your adapter is compared with, and rules it has a reason not to keep |

A model is loaded by the class that transformers has for its kind of configuration. For one that transformers lacks,
implement `load_model`, `register_config` and `register_processor`. `corellm inspect` shows what the adapter makes of a
prompt; a rule of the contract that fails says by which hook, what was expected, what came, and what to change.

Licence: see `LICENSE`.
"""

_GITIGNORE = """\
__pycache__/
*.egg-info/
.*_cache/
.hypothesis/
dist/
/tiny/
"""

_LICENSE = """\
This distribution was begun as a copy of {original}, which is licensed under {license}.
What is still copied stays under that licence: put its text here. Choose a licence of your own for what you add.
"""

_TEST = '''\
"""{camel} keeps the contract."""

from {package}.contract import (
{imports}
)
'''


_WORKFLOW = """\
# What to run on every change. The project lives where you like; this is one way to have it tested.
name: test
on: [push, pull_request]

jobs:
  test:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        python: ["3.11", "3.12"]
    env:
      CORELLM: ${{{{ vars.CORELLM }}}} # what to install corellm from: a path or git+https://..., no name on an index
      CORELLM_TESTING: ${{{{ vars.CORELLM_TESTING }}}} # of its folder extensions/testing: a path or git+https://...#subdirectory=extensions/testing
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{{{ matrix.python }}}}
      - run: python -m pip install "$CORELLM" "$CORELLM_TESTING" build ruff mypy -e '.[test]'
      - run: ruff check . && ruff format --check .
      - run: mypy
      - run: pytest
      - run: python -m build --wheel && python -m pip install --force-reinstall --no-deps dist/*.whl
      - run: cd .. && python -m pytest --pyargs {package}.contract # the wheel, from outside the checkout
"""


def distribution_files(
    name: PluginName, original: Original, adapters: Mapping[str, tuple[str, str]], tests: Sequence[str]
) -> dict[str, str]:
    """Return `{path in the distribution's folder: text}`.

    Args:
        name: the new plugin's.
        original: the plugin it was copied from.
        adapters: `{architecture: (module, class)}` of the new one.
        tests: classes of its module `contract`.
    """
    known = {
        "distribution": name.distribution,
        "package": name.package,
        "camel": name.camel,
        "original": f"{original.distribution} {original.version}",
        "license_line": f'license = "{original.license}"\n' if original.license else "",
        "license": original.license or "terms that its metadata do not state",
        "served": ", ".join(f"`{architecture}`" for architecture in adapters),
        "entry_points": "\n".join(
            f'{architecture} = "{module}:{adapter}"' for architecture, (module, adapter) in adapters.items()
        ),
        "dependencies": ", ".join(f'"{_requirement(text)}"' for text in original.requirements),
        "imports": "\n".join(f"    {test} as {test}," for test in tests),  # on lines of their own: names may be long
    }
    return {
        ".gitignore": _GITIGNORE,
        "pyproject.toml": _PYPROJECT.format(**known),
        "README.md": _README.format(**known),
        "LICENSE": original.license_text or _LICENSE.format(**known),
        "tests/test_contract.py": _TEST.format(**known),
        ".github/workflows/test.yml": _WORKFLOW.format(**known),
    }


def _requirement(text: str) -> str:
    """Return a requirement of the original in the usual spelling; corellm's own is for the running version."""
    parts = re.fullmatch(r"\s*([\w.-]+)\s*(\[[^\]]*\])?\s*\(?([^;)]*)\)?(.*)", text)
    assert parts is not None, f"metadata have no such requirement: {text!r}"
    named, extras, bounds, marker = parts[1], parts[2] or "", parts[3], parts[4].replace('"', "'")
    if named == "corellm":
        major, minor = (int(number) for number in __version__.split(".")[:2])
        bounds = f">={major}.{minor},<{major}.{minor + 1}" if major == 0 else f">={major}.{minor},<{major + 1}"
    else:
        bounds = ",".join(sorted((bound.strip() for bound in bounds.split(",")), key=lambda bound: bound[:1] == "<"))
    return f"{named}{extras}{bounds}{marker}"
