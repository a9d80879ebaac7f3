"""Replaces lines of pages when the site is built: `<!-- generate: KIND ARGUMENTS -->`, and quotations.

    diagram NAME            a drawing of `docs/img/`
    help [COMMAND]          the output of `corellm [COMMAND] --help`
    arguments CLASS         a table of a configuration class's fields
    fields CLASS            a table of the fields of a request to the server; of `messages` and `parts`, too
    errors                  the tree of errors
    metrics                 a table of the server's metrics
    rules                   the contract's rules
    moved                   a table of packages that left the core
    imports                 the modules and names of `corellm_vllm`
    same, different         usages of vLLM's interface that work unchanged, or differently
    renamed                 a table of arguments that corellm names otherwise
    scripts                 a table of kinds of scripts for vLLM, and what becomes of each
    absent MODULE TABLE     a table of what corellm does not have, e.g. of `corellm_vllm.absent.names`
    survey TABLE            a table of the survey of adapters' changes: families, rules or equivalent
    part FILE [HEADING]     a Markdown file of the repository without its title, or the text below one of its headings
    chapter FILE            a Markdown file of the repository, with its title

`[Llava.get_prompt_updates](path/to/file.py "quote")` on a line of its own is replaced by that definition; several
names are separated by commas. In plain Markdown it is a link to the file.

A part that cannot be generated fails the build.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from docs.generate import inclusion, quotes, survey, tables, usages

ROOT = Path(__file__).resolve().parents[2]
DIRECTIVE = re.compile(r"^<!-- generate: (.+?) -->$", re.MULTILINE)
QUOTATION = re.compile(r'^\[([^\]]+)\]\((\S+) "quote"\)$', re.MULTILINE)
_HIDDEN = re.compile(r"^<!-- (?:setup|not run)\b.*?-->\n", re.MULTILINE | re.DOTALL)

GENERATORS: dict[str, Callable[..., str]] = {
    "diagram": inclusion.diagram,
    "help": tables.command_help,
    "arguments": tables.arguments,
    "fields": tables.request_fields,
    "errors": tables.error_tree,
    "metrics": tables.metrics,
    "rules": tables.rules,
    "moved": tables.moved,
    "imports": usages.imports,
    "same": usages.same,
    "different": usages.different,
    "renamed": usages.renamed,
    "scripts": usages.scripts,
    "absent": usages.absent,
    "survey": survey.table,
}
"""By kind; called with the directive's arguments."""

INCLUSIONS: dict[str, Callable[..., str]] = {"part": inclusion.part, "chapter": inclusion.chapter}
"""By kind; called with the page and the directive's arguments. Their results may have directives."""


def expand(markdown: str, page: str) -> str:
    """Return the page with all directives and quotations replaced, and without the blocks for its tests.

    Args:
        markdown: of the page.
        page: its path below `docs/`.

    Raises:
        ValueError: an unknown kind, or arguments it does not take.
    """
    quoted = QUOTATION.sub(lambda found: quotation(found[1], found[2], page), _HIDDEN.sub("", markdown))
    return DIRECTIVE.sub(lambda found: generate(found[1], page), quoted)


def quotation(names: str, target: str, page: str) -> str:
    """Return the definitions that a page quotes from the file `target`, relative to the page.

    Raises:
        ValueError: there is no such file or definition.
    """
    file = os.path.normpath(Path("docs", page).parent / target)
    try:
        return quotes.quote(file, *(name.strip() for name in names.split(",")))
    except (KeyError, OSError) as error:
        raise ValueError(f"docs/{page}: cannot quote {names} of {target}: {error!r}") from error


def generate(directive: str, page: str) -> str:
    """Return the text that replaces one directive.

    Raises:
        ValueError: an unknown kind, or arguments it does not take.
    """
    kind, *arguments = shlex.split(directive)
    try:
        if kind in INCLUSIONS:
            return expand(INCLUSIONS[kind](page, *arguments), page)
        return GENERATORS[kind](*arguments)
    except (KeyError, TypeError, OSError) as error:
        raise ValueError(f"docs/{page}: cannot generate {directive!r}: {error!r}") from error
