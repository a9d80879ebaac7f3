"""Makes one HTML page of a report: tokens beside the images they stand for. The page loads nothing from a network.

Text of prompts, files and vocabularies is escaped, and the page's content policy runs no script but its own, by hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from corellm_testing.inspection.report import Item, Report, Token, View, printable, shown, shown_time

_HUES = (205, 330, 150, 32, 265, 95, 0, 180)
_SHARP_BELOW = 200
"""Pixels: a smaller image is enlarged, without smoothing."""


def make_page(report: Report) -> str:
    """Return the page, with style, script and images in it."""
    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    sided = " class=sided" if report.items else ""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(printable(report.model))}: what the adapter did</title>
<style>{style}</style>
{_header(report)}
<main{sided}>
{"".join(_section(report))}
</main>
<output id="now">Point at a token or at a patch.</output>
<script>{script}</script>
</html>
"""


def _header(report: Report) -> str:
    failed = f'<p class="bad">{escape(report.error)}</p>' if report.error else ""
    return f"""<header>
<h1>{escape(printable(report.model))}</h1>
<p class="soft">{escape(report.architecture)}, {escape(report.dtype)} &middot; <code>{escape(report.adapter)}</code> of
{escape(report.distribution)} {escape(report.version)}, contract {escape(report.contract)}</p>
{failed}
</header>"""


def _section(report: Report) -> Iterator[str]:
    if report.items:
        yield f'<section id="items">{"".join(_item(i, item) for i, item in enumerate(report.items))}</section>'
    tokens = _tokens(report) if report.tokens else ""
    yield f'<section id="work">{tokens}{_stages(report)}</section>'


def _hue(number: int) -> int:
    return _HUES[number % len(_HUES)]


# --- items ------------------------------------------------------------------------------------------------------------


def _item(number: int, item: Item) -> str:
    views = "".join(_view(number, item, view) for view in item.views)
    grid = f"Grid {item.grid} ({item.grid.source})." if item.grid else "No grid: rows and columns are unknown."
    if item.grid and item.modality != "audio" and any(view.step is not None for view in item.views[:1]):
        grid += " It is drawn over the original, as if nothing had been cut off or padded."
    returned = f"; the encoder returned {item.embeddings.shape}" if item.embeddings else ""
    tensors = [*item.tensors, *([item.embeddings] if item.embeddings else [])]
    described = "".join(
        f"<dt><code>{escape(tensor.name)} {escape(tensor.shape)} {escape(tensor.dtype)}</code>"
        f"<dd>{escape(tensor.layout or 'by the encoder')}, {tensor.nbytes:,} bytes: {escape(tensor.summary)}"
        for tensor in tensors
    )
    return f"""<article class="item" style="--hue:{_hue(number)}">
<h2>{escape(item.name)} <span class="soft">{escape(printable(item.file))}</span></h2>
<div class="views">{views}</div>
<p>Tokens {item.offset} to {item.offset + item.length - 1}: {item.length}, of which {item.num_embeds} take
embeddings{escape(returned)}.</p>
{f'<p class="bad">{escape(printable(item.error))}</p>' if item.error else ""}
<p class="soft">{escape(grid)}</p>
<dl>{described}</dl>
<p class="soft"><code>{escape(item.identifier)}</code></p>
</article>"""


def _view(number: int, item: Item, view: View) -> str:
    source = f"data:{view.mime_type};base64,{base64.b64encode(view.content).decode()}"
    enlarged = 1 if view.over_time else max(1, _SHARP_BELOW // max(view.width, view.height))
    over = ""
    if view.step is not None and item.grid is not None:
        rows, columns = item.grid.rows, item.grid.columns
        first = view.step * rows * columns
        cells = "".join(f'<i data-k="{number}-{first + k}"></i>' for k in range(rows * columns))
        over = f'<div class="grid" style="grid-template:repeat({rows},1fr)/repeat({columns},1fr)">{cells}</div>'
    stretched = ' class="stretched"' if view.over_time else ""
    return f"""<figure{stretched}><div class="view"><img src="{source}" alt="{escape(view.caption)}"
width="{view.width * enlarged}" height="{view.height * enlarged}">{over}</div>
<figcaption>{escape(view.caption)}</figcaption></figure>"""


# --- tokens -----------------------------------------------------------------------------------------------------------


def _tokens(report: Report) -> str:
    parts = []
    for item, group in groupby(enumerate(report.tokens), key=lambda pair: pair[1].item):
        tokens = list(group)
        if item is None:
            parts += [_token(i, token, report) for i, token in tokens]
        else:
            parts.append(_placeholder(item, tokens, report))
    prompt = f'<p class="wide"><code>{escape(printable(report.prompt))}</code></p>' if report.prompt else ""
    return f"""<article><h2>{len(report.tokens)} tokens <span class="soft">{report.about_tokens}</span></h2>
<p class="soft legend">Under each its id @ position. Filled ones take an item's embeddings (the number is the
position), dashed ones stand for the item, too, but keep their own.</p>
{prompt}<div class="tokens">{"".join(parts)}</div></article>"""


def _placeholder(number: int, tokens: Sequence[tuple[int, Token]], report: Report) -> str:
    """Return an item's tokens in the rows of its grid; those that take an embedding are filled and show positions."""
    item = report.items[number]
    grid = item.grid if item.modality != "audio" else None
    lines = [("row" if grid else "row free", "")]
    for i, token in tokens:
        kind, line = lines.pop()
        if grid and token.embed is not None and token.embed % grid.columns == 0 and line:
            lines.append((kind, line))
            kind, line = "row step" if token.embed % (grid.rows * grid.columns) == 0 else "row", ""
        lines.append((kind, line + _token(i, token, report)))
    takers = [token for _, token in tokens if token.embed is not None]
    names = ", ".join(sorted({f"{shown(token.text)} ({token.id})" for token in takers}))
    others = f", and {len(tokens) - len(takers)} that keep their own" if len(takers) < len(tokens) else ""
    width = max((len(_place(token)) for token in takers), default=0)
    rows = "".join(f'<div class="{kind}">{line}</div>' for kind, line in lines)
    return f"""<div class="placeholder item" style="--hue:{_hue(number)};--letters:{width}">
<p><b>{escape(item.name)}</b> {escape(names)} × {len(takers)}{others}</p>{rows}</div>"""


def _place(token: Token) -> str:
    """Return a token's position, as one number where the axes of a text token agree."""
    axes = token.positions[:1] if token.item is None and len(set(token.positions)) == 1 else token.positions
    return "·".join(map(str, axes)) or "?"


def _token(index: int, token: Token, report: Report) -> str:
    place = _place(token)
    facts = [f"token {index}", f"id {token.id} {shown(token.text)}", f"position {place}"]
    if token.item is not None:
        item = report.items[token.item]
        facts.append(item.name)
        facts.append("its own embedding" if token.embed is None else f"embedding {token.embed} of {item.num_embeds}")
    title = escape(", ".join(facts))
    if token.embed is not None:
        return f'<span class="token" data-k="{token.item}-{token.embed}" title="{title}">{place}</span>'
    small = f"<small>{token.id} @ {place}</small>"
    return f'<span class="token" title="{title}">{escape(shown(token.text))}{small}</span>'


# --- stages -----------------------------------------------------------------------------------------------------------


def _stages(report: Report) -> str:
    rows = []
    for stage in report.stages:
        rows.append(_row("stage", stage.name, stage.seconds, report.outcome(stage), failed=bool(stage.error)))
        for call in stage.hooks if stage.error or stage.name != "load" else ():
            outcome = f"raised {call.error}" if call.error else call.result
            rows.append(_row("hook", call.hook, call.seconds, outcome, failed=bool(call.error)))
    return f"""<article><h2>Stages</h2><div class="wide"><table>
<tr><th>stage<th class="number">time<th></tr>{"".join(rows)}</table></div></article>"""


def _row(kind: str, name: str, seconds: float, text: str, *, failed: bool) -> str:
    cell = f'<span class="bad">{escape(printable(text))}</span>' if failed else escape(printable(text))
    return f'<tr class="{kind}"><td>{escape(name)}<td class="number">{shown_time(seconds)}<td class="text">{cell}</tr>'
