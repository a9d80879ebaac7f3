"""Random schemas, regexes, choices and grammars: right ones, of what is supported, and wrong ones of any kind.

Knows the words of each; knows neither outputs nor how they are held to anything.
"""

from __future__ import annotations

import json
import string
from random import Random
from typing import Any

FORMATS = ("date", "time", "date-time", "email", "ipv4", "ipv6", "uuid", "uri", "hostname", "duration")
_NAMES = ("a", "b", "name", "sides", "x y", "é", "$ref", "0", "")
_REFUSED: tuple[tuple[str, Any], ...] = (
    ("not", {}), ("if", {"type": "null"}), ("uniqueItems", True), ("contains", {}), ("propertyNames", {}),
    ("dependentRequired", {"a": ["b"]}), ("unevaluatedItems", False), ("nullable", True), ("divisibleBy", 2),
)  # fmt: skip
_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1.5,
    1e30,
    2**70,
    "",
    "a",
    "(",
    [],
    [[]],
    {},
    {"type": "strin"},
    "\ud800",
)
_KEYWORDS = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "minProperties",
    "maxProperties", "items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf", "allOf", "oneOf", "$ref",
    "$defs", "$id", "$anchor", "$schema", "x-guidance", "title",
)  # fmt: skip
_ATOMS = ("a", "é", "日", ".", r"\d", r"\w", r"\s", "[a-c]", "[^x]", r"\.", r"[\s\S]", r"\p{L}", "")
_WRONG_ATOMS = (
    "(?=a)",
    "(?<!b)",
    r"\1",
    "(",
    ")",
    "[",
    "[z-a]",
    "{2,1}",
    "*",
    "(?P<n",
    r"\u{110000}",
    "\x00",
    "\ud800",
)


def bounded_schema(rng: Random, depth: int = 3) -> dict[str, Any]:
    """A schema, whose outputs are short, of keywords that are supported."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const"]
    kind = rng.choice([*kinds, *(["object"] * 4 + ["array", "anyOf"] if depth else [])])
    if kind == "object":
        names = rng.sample(_NAMES, rng.randint(0, 4))
        inner = {name: bounded_schema(rng, depth - 1) for name in names}
        required = rng.sample(names, rng.randint(0, len(names)))
        return {"type": "object", "properties": inner, "required": required, "additionalProperties": False}
    if kind == "array":
        least = rng.randint(0, 2)
        return {"type": "array", "items": bounded_schema(rng, depth - 1), "minItems": least, "maxItems": least + 2}
    if kind == "anyOf":
        return {"anyOf": [bounded_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "string":
        held = rng.choice([
            {"minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 9)}, {"pattern": f"^{bounded_regex(rng)}$"},
            {"format": rng.choice(FORMATS[:4])},
        ])  # fmt: skip
        return {"type": "string", **held}
    if kind == "integer":
        least = rng.randint(-200, 200)
        return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 300)}
    if kind == "number":
        return {"type": "number", "exclusiveMinimum": rng.randint(-9, 0), "exclusiveMaximum": rng.randint(1, 9) + 0.5}
    if kind == "enum":
        return {"enum": [value(rng) for _ in range(rng.randint(1, 4))]}
    return {"const": value(rng)} if kind == "const" else {"type": kind}


def value(rng: Random, depth: int = 2) -> Any:
    """A value of JSON."""
    kind = rng.randrange(8 if depth else 6)
    if kind >= 6:
        inner = [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        return inner if kind == 6 else dict(zip(rng.sample(_NAMES, len(inner)), inner, strict=True))
    return (None, True, rng.randint(-99, 99), rng.randint(0, 99) / 4, "".join(rng.choices('ab "\\é\n', k=3)), "")[kind]


def bounded_regex(rng: Random, depth: int = 2) -> str:
    """A regex of short texts, as all libraries read it."""
    kind = rng.randrange(4 if depth else 1)
    if kind == 1:
        return f"({bounded_regex(rng, depth - 1)}|{bounded_regex(rng, depth - 1)})"
    if kind == 2:
        return bounded_regex(rng, depth - 1) + bounded_regex(rng, depth - 1)
    if kind == 3:
        return f"({bounded_regex(rng, depth - 1)}){{{rng.randint(0, 2)},{rng.randint(2, 4)}}}"
    return rng.choice(["[a-c]", "x", "日?", "[0-9]+", r"\.", "(yes|no)", "[^a-z\n]"])


def schema(rng: Random, depth: int = 4) -> Any:
    """Any schema: right, refused, malformed, or large."""
    kind = rng.random()
    if kind < 0.35:
        return bounded_schema(rng, rng.randint(0, depth))
    if kind < 0.45:
        return {**bounded_schema(rng, 2), **dict([rng.choice(_REFUSED)])}
    if kind < 0.5:
        return _large(rng)
    made: dict[str, Any] = {}
    for keyword in rng.sample(_KEYWORDS, rng.randint(1, 6)):
        made[keyword] = _of_keyword(rng, keyword, depth)
    return made


def _of_keyword(rng: Random, keyword: str, depth: int) -> Any:
    """What may stand behind a keyword, or something else."""
    if rng.random() < 0.15 or not depth:
        return rng.choice(_ODD)
    if keyword in ("items", "additionalProperties"):
        return rng.choice([True, False, schema(rng, depth - 1)])
    if keyword in ("anyOf", "allOf", "oneOf", "prefixItems"):
        return [schema(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if keyword in ("properties", "patternProperties", "$defs"):
        names = [regex(rng) if keyword == "patternProperties" else rng.choice(_NAMES) for _ in range(rng.randint(0, 3))]
        return {name: schema(rng, depth - 1) for name in names}
    if keyword == "required":
        return rng.choices(_NAMES, k=rng.randint(0, 4))
    if keyword == "type":
        return rng.choice(["object", "array", "string", "integer", ["string", "null"], "number", "boolean", "any"])
    if keyword == "pattern":
        return regex(rng)
    if keyword == "format":
        return rng.choice([*FORMATS, "nonsense", "regex"])
    if keyword in ("$ref", "$id", "$anchor", "$schema"):
        places = ["#", "#/$defs/a", "#/properties/a", "#a", "https://example.org/s", "file:///etc/passwd", "//x", "a"]
        return rng.choice(places)
    if keyword == "enum":
        return [value(rng) for _ in range(rng.randint(0, 4))]
    if keyword in ("const", "title"):
        return value(rng)
    return rng.choice([0, 1, 2, 5, 10, 1000, 10**6, 10**12, -3, 0.1, 2.0])


def _large(rng: Random) -> Any:
    """A schema that may take much to compile or to follow."""
    size = rng.choice([10, 40, 200, 2000])
    nested: Any = {"type": "string"}
    for _ in range(min(size, 300)):  # Python writes no deeper ones
        nested = {rng.choice(["items", "additionalProperties", "not"]): nested}
    wide = {f"p{number}": {"type": "string", "maxLength": size} for number in range(size)}
    return rng.choice([
        nested, {"type": "object", "properties": wide}, {"type": "integer", "multipleOf": size * 997 + 1},
        {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(4)]} for i in range(size % 11)]},
        {"enum": ["x" * (number % 50) + str(number) for number in range(size * 6)]},
        {"type": "string", "minLength": size**2, "maxLength": size**3}, {"pattern": f"(a{{1,{size}}}){{1,{size}}}"},
        {"type": "array", "minItems": size**3, "items": {"$ref": "#"}},
    ])  # fmt: skip


def regex(rng: Random, depth: int = 4) -> str:
    """Any regex: right, with what is not supported, malformed, or large."""
    if rng.random() < 0.3:
        return bounded_regex(rng)
    if not depth or rng.random() < 0.3:
        return rng.choice(_WRONG_ATOMS if rng.random() < 0.1 else _ATOMS)
    first, second = regex(rng, depth - 1), regex(rng, depth - 1)
    counts = rng.choice(["*", "+", "?", "{2}", "{0,3}", "{3,}", f"{{1,{10 ** rng.randint(0, 7)}}}", "{,2}"])
    return rng.choice([f"({first}|{second})", first + second, f"({first}){counts}", f"(?:{first})", f"({first})"])


def grammar(rng: Random) -> str:
    """Any grammar: of rules in Lark's notation or in GBNF, some of them broken."""
    is_lark = rng.random() < 0.6
    names = [f"r{number}" for number in range(rng.choice([1, 2, 4, 8, 40]))]
    lines = []
    for number, name in enumerate(["start" if is_lark else "root", *names]):
        parts = [_part(rng, names, is_lark) for _ in range(rng.randint(1, 4))]
        arrow = ":" if is_lark else "::="
        lines.append(f"{name}{arrow} {' '.join(parts)}" + (f" | {_part(rng, names, is_lark)}" if number % 2 else ""))
    text = "\n".join(lines)
    if rng.random() < 0.2:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(string.punctuation + "\x00é\n") + text[at + rng.randint(0, 3) :]
    return text


def _part(rng: Random, names: list[str], is_lark: bool) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(names) + rng.choice(["", "", "*", "?", "+"])
    if kind < 0.8:
        return json.dumps(rng.choice(["a", "b", "(", ")", "+", "é", "x" * 99])) + rng.choice(["", "", "*", "?"])
    pattern = rng.choice(["[0-9]+", "[a-z]", "a|b", "x{2,5}"])
    return f"/{pattern}/" if is_lark else rng.choice(["[0-9]+", "[a-z]", "[^a]*"])


def form(rng: Random) -> dict[str, Any]:
    """Any form, right or wrong, as the fields of a request state it."""
    kind = rng.choices(["json", "regex", "grammar", "choice", "structural_tag"], [8, 5, 4, 1, 2])[0]
    if kind == "json":
        return {"json": schema(rng)}
    if kind == "regex":
        return {"regex": regex(rng, rng.randint(1, 6))}
    if kind == "grammar":
        return {"grammar": grammar(rng)}
    if kind == "choice":
        return {"choice": [value(rng) if rng.random() < 0.1 else "".join(rng.choices("ab\n é", k=4)) for _ in range(9)]}
    tags = [
        {"begin": "<f>", "schema": schema(rng, 2), "end": rng.choice(["</f>", ""])} for _ in range(rng.randint(0, 3))
    ]
    return {"structural_tag": {"structures": tags, "triggers": rng.choice([["<f"], ["<"], [""], [], [1]])}}
