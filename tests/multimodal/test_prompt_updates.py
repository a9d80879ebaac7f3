"""Prompt updates: every item gets its placeholder where the family's prompt format puts it, or a typed error says why.

Tokens are letters here: `tokenize` gives ordinary text one token per character, and `<...>` one token of its own.
"""

import copy
import pickle
import re
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from corellm.errors import (
    AlreadyExpandedError,
    ContractError,
    MissingPlaceholderError,
    PromptError,
    SurplusPlaceholderError,
)
from corellm.multimodal.inputs import PlaceholderRange
from corellm.multimodal.prompt_updates import (
    PromptIndexTargets,
    PromptInsertion,
    PromptReplacement,
    PromptUpdateDetails,
    apply_prompt_updates,
    replaced_targets,
)

SPECIAL = {"<s>": 1, "</s>": 2, "<image>": 32000, "<video>": 32001, "<nl>": 32002, "<img>": 32003, "</img>": 32004}
IMAGE, VIDEO = SPECIAL["<image>"], SPECIAL["<video>"]
start, prefix, end = PromptIndexTargets.start, PromptIndexTargets.prefix, PromptIndexTargets.end
select_id, select_text = PromptUpdateDetails.select_token_id, PromptUpdateDetails.select_text


def tokenize(text):
    return [SPECIAL.get(part) or ord(part) for part in re.findall(r"<[^>]+>|.", text, flags=re.DOTALL)]


def detokenize(token_ids):
    names = {token: name for name, token in SPECIAL.items()}
    return "".join(names.get(token) or chr(token) for token in token_ids)


def apply(prompt, updates, counts, **options):
    token_ids, placeholders = apply_prompt_updates(tokenize(prompt), updates, counts, tokenize, **options)
    return detokenize(token_ids), placeholders


def spans(placeholders):
    return {modality: [(p.offset, p.length) for p in places] for modality, places in placeholders.items()}


# --- what families do -----------------------------------------------------------------------------------------------


def test_llava():
    """Each `<image>` becomes as many as its image has patches, all taking embeddings."""
    sizes = [3, 2]
    update = PromptReplacement("image", "<image>", lambda i: [IMAGE] * sizes[i])
    text, places = apply("<s>a<image>b<image>c", [update], {"image": 2}, placeholder_token_ids={IMAGE: "image"})
    assert text == "<s>a" + "<image>" * 3 + "b" + "<image>" * 2 + "c"
    assert places == {"image": [PlaceholderRange(2, 3), PlaceholderRange(6, 2)]}


def test_fuyu():
    """Inserted at the start: rows of patches, each ended by a newline token, then BOS, neither taking embeddings."""
    rows = "<image><image><nl>" * 2 + "<s>"
    update = PromptInsertion("image", start(), select_text(rows, "<image>"))
    text, places = apply("hi", [update], {"image": 1}, placeholder_token_ids={IMAGE: "image"})
    assert text == rows + "hi"
    mask = (True, True, False, True, True, False, False)
    assert places == {"image": [PlaceholderRange(0, 7, mask)]}


@pytest.mark.parametrize(
    "content",
    [
        select_id([32003, IMAGE, IMAGE, 32004], IMAGE),
        PromptUpdateDetails([32003, IMAGE, IMAGE, 32004], is_embed=np.array([False, True, True, False])),
        PromptUpdateDetails("<img><image><image></img>", is_embed=[0, 1, 1, 0]),
        PromptUpdateDetails.select_token_ids("<img><image><image></img>", [IMAGE, VIDEO]),
        select_text([32003, IMAGE, IMAGE, 32004], "<image>"),
        select_text("<img><image><image></img>", "<image><image>"),
    ],
)
def test_qwen(content):
    """Start and end tokens around the patches take no embedding, however the adapter says which do."""
    update = PromptReplacement("image", "<img><image></img>", content)
    text, places = apply("<img><image></img>?<img><image></img>", [update], {"image": 2})
    assert text == "<img><image><image></img>?<img><image><image></img>"
    mask = (False, True, True, False)
    assert places == {"image": [PlaceholderRange(0, 4, mask), PlaceholderRange(5, 4, mask)]}


def test_blip2():
    """Query tokens go before BOS; the text has no placeholder."""
    update = PromptInsertion("image", start(), [IMAGE] * 4)
    text, places = apply("</s>Question", [update], {"image": 1}, placeholder_token_ids={IMAGE: "image"})
    assert text == "<image>" * 4 + "</s>Question"
    assert places == {"image": [PlaceholderRange(0, 4)]}


# --- every kind of target and content -------------------------------------------------------------------------------

TARGETS = {
    "ids": ([VIDEO], False),
    "array": (np.array([VIDEO]), False),
    "text": ("<video>", False),
    "function": (lambda i: "<video>", False),
    "start": (start(), 0),
    "prefix": (prefix("<s>"), 1),
    "prefix ids": (prefix([1]), 1),
    "empty prefix": (prefix([]), 0),
    "end": (end(), 6),
    "function of index": (lambda i: end(), 6),
}
CONTENTS = {
    "ids": [IMAGE, IMAGE],
    "array": np.array([IMAGE, IMAGE]),
    "text": "<image><image>",
    "details": PromptUpdateDetails.from_seq("<image><image>"),
    "function": lambda i: [IMAGE, IMAGE],
    "function of details": lambda i: PromptUpdateDetails.from_seq([IMAGE, IMAGE]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", [PromptReplacement, PromptInsertion])
def test_targets_and_contents(kind, target, content):
    """Every target kind works with every content kind. Nothing at a position is replaced."""
    where, index = TARGETS[target]
    prompt = "<s>ab" + ("<video>" if index is False else "x") + "cd"
    text, places = apply(prompt, [kind("image", where, CONTENTS[content])], {"image": 1})
    tokens = tokenize(prompt)
    if index is not False:
        offset, tail = index, tokens[index:]
    elif kind is PromptReplacement:
        offset, tail = 3, tokens[4:]
    else:
        offset, tail = 4, tokens[4:]
    assert tokenize(text) == [*tokens[:offset], IMAGE, IMAGE, *tail]
    assert places == {"image": [PlaceholderRange(offset, 2)]}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (start(), "AABBB<s>a-b-"),
        (prefix("<s>"), "<s>AABBBa-b-"),
        (end(), "<s>a-b-AABBB"),
        ("-", "<s>a-AABBBb-"),
        ("b-", "<s>a-b-AABBB"),
    ],
)
def test_items_inserted_at_one_place_keep_their_order(target, expected):
    """All items go to the same position, item 0 first; a landmark may occur again and is no placeholder."""
    contents = ["AA", "BBB"]
    text, places = apply("<s>a-b-", [PromptInsertion("image", target, lambda i: contents[i])], {"image": 2})
    assert text == expected
    first = tokenize(expected).index(ord("A"))
    assert spans(places) == {"image": [(first, 2), (first + 2, 3)]}


def test_modalities_interleave():
    """Items of two modalities are bound to their own targets, in the order of the prompt."""
    updates = [PromptReplacement("image", "<image>", "II"), PromptReplacement("video", "<video>", "VVV")]
    text, places = apply("<video>a<image><image>b<video>", updates, {"image": 2, "video": 2})
    assert text == "VVVaIIIIbVVV"
    assert spans(places) == {"image": [(4, 2), (6, 2)], "video": [(0, 3), (9, 3)]}


def test_insertion_beside_replacement():
    """At one position the insertion comes first, whichever update does; both keep their content."""
    updates = [PromptReplacement("image", "<image>", "II"), PromptInsertion("video", start(), "VV")]
    for order in (updates, updates[::-1]):
        text, places = apply("<image>a", order, {"image": 1, "video": 1})
        assert text == "VVIIa"
        assert spans(places) == {"image": [(2, 2)], "video": [(0, 2)]}


def test_targets_of_each_item():
    """Numbered placeholders bind by number, also out of order."""
    updates = [PromptReplacement("image", lambda i: f"<{i}>", lambda i: "AB"[i] * 2)]
    text, places = apply_prompt_updates(
        [91, 81, 90], updates, {"image": 2}, lambda s: {"<0>": [90], "<1>": [91]}.get(s, [*map(ord, s)])
    )
    assert text == [66, 66, 81, 65, 65]
    assert spans(places) == {"image": [(3, 2), (0, 2)]}


def test_alternatives():
    """The first update whose target is found is used; a prefix that is absent is not found."""
    updates = [PromptInsertion("image", prefix("<s>"), "II"), PromptInsertion("image", start(), "JJ")]
    assert apply("<s>a", updates, {"image": 1})[0] == "<s>IIa"
    assert apply("a", updates, {"image": 1})[0] == "JJa"
    updates = [PromptReplacement("image", "<image>", "II"), PromptInsertion("image", end(), "JJ")]
    assert apply("a<image>b", updates, {"image": 1})[0] == "aIIb"
    assert apply("ab", updates, {"image": 1})[0] == "abJJ"


def test_alternatives_never_reorder_items():
    """With both spellings in the prompt, item 0 is not bound behind item 1: better an error."""
    updates = [PromptReplacement("image", "<image>", "II"), PromptReplacement("image", "<img>", "JJ")]
    assert apply("<image><img>", updates, {"image": 2})[0] == "IIJJ"
    with pytest.raises(MissingPlaceholderError):
        apply("<img><image>", updates, {"image": 2})
    fallback = [PromptReplacement("image", "<image>", "II"), PromptInsertion("image", start(), "JJ")]
    with pytest.raises(MissingPlaceholderError, match="1 placeholder '<image>'"):
        apply("a<image>", fallback, {"image": 2})


def test_the_longest_target_wins():
    """A target inside another's occurrence is not taken for an item of its own."""
    updates = [PromptReplacement("image", "<img>", "I"), PromptReplacement("video", "<img><video>", "V")]
    text, places = apply("<img><video><img>", updates, {"image": 1, "video": 1})
    assert text == "VI"
    assert spans(places) == {"image": [(1, 1)], "video": [(0, 1)]}


def test_text_only_prompts_pass_unchanged():
    """No items, no change; asked-for modalities have empty lists; the empty prompt takes insertions."""
    assert apply("<s>ab", [], {}) == ("<s>ab", {})
    update = PromptReplacement("image", "<image>", lambda i: [IMAGE] * [][i])
    assert apply("<s>ab", [update], {"image": 0}, placeholder_token_ids={IMAGE: "image"}) == ("<s>ab", {"image": []})
    assert apply("", [PromptInsertion("image", end(), "II")], {"image": 1})[0] == "II"


def test_array_prompts_give_plain_integers():
    """A numpy prompt comes back as a list of int, the input unchanged."""
    prompt = np.array([5, IMAGE, 6])
    tokens, _ = apply_prompt_updates(prompt, [PromptReplacement("image", [IMAGE], [7])], {"image": 1}, tokenize)
    assert tokens == [5, 7, 6]
    assert {type(token) for token in tokens} == {int}
    assert prompt.tolist() == [5, IMAGE, 6]


def test_text_is_tokenized_once():
    """Fifty items of the same text cost one call per text."""
    calls = []

    def counting(text):
        calls.append(text)
        return tokenize(text)

    update = PromptReplacement("image", "<image>", select_text("<img><image></img>", "<image>"))
    apply_prompt_updates([IMAGE] * 50, [update], {"image": 50}, counting)
    assert sorted(calls) == ["<image>", "<img><image></img>"]


# --- refusals: the prompt -------------------------------------------------------------------------------------------

LLAVA = PromptReplacement("image", "<image>", [IMAGE] * 4)
WRAPPED = PromptReplacement("image", "<image>", select_id([32003, IMAGE, 32004], IMAGE))
WHOLE = PromptReplacement("image", "<img><image></img>", select_id([32003, *[IMAGE] * 4, 32004], IMAGE))
BLIP2 = PromptInsertion("image", start(), [IMAGE] * 4)
RESERVED = {IMAGE: "image", VIDEO: "video"}


@pytest.mark.parametrize(
    ("prompt", "update", "count", "item", "got", "words"),
    [
        (
            "a<image>",
            LLAVA,
            2,
            1,
            1,
            "the prompt has 1 placeholder '<image>' (token 32000) for 2 images; write one per image",
        ),
        ("a", LLAVA, 1, 0, 0, "0 placeholders '<image>' (token 32000) for 1 image;"),
        ("<image><image>", LLAVA, 3, 2, 2, "2 placeholders"),
        ("<image><image>", PromptReplacement("image", "<image>", [IMAGE] * 2), 3, 2, 2, "2 placeholders"),
        ("a", PromptReplacement("image", [IMAGE], "II"), 1, 0, 0, "0 placeholders token 32000 for 1 image;"),
        ("a", PromptInsertion("image", prefix("<s>"), "II"), 1, 0, 0, "'<s>' (token 1)"),
        ("<s>", PromptInsertion("image", prefix("<s>a"), "II"), 1, 0, 0, "'<s>a' (tokens 1, 97)"),
        ("b", PromptInsertion("image", "a", "II"), 1, 0, 0, "no 'a' (token 97), after which image 0 belongs"),
    ],
)
def test_missing(prompt, update, count, item, got, words):
    """An item without a place: the first such item, and how many placeholders there are."""
    with pytest.raises(MissingPlaceholderError) as caught:
        apply(prompt, [update], {"image": count}, placeholder_token_ids=RESERVED)
    error = caught.value
    assert words in str(error)
    assert (error.modality, error.item, error.expected, error.got) == ("image", item, count, got)


@pytest.mark.parametrize(
    ("prompt", "updates", "counts", "modality", "got", "words"),
    [
        ("<image>a<image>", [LLAVA], {"image": 1}, "image", 2, "2 placeholders '<image>' (token 32000) for 1 image;"),
        ("<image>", [LLAVA], {"image": 0}, "image", 1, "1 placeholder '<image>' (token 32000) for 0 images;"),
        ("a<image>", [LLAVA], {}, "image", 1, "position 1"),
        ("a<image>", [], {}, "image", 1, "token 32000 at position 1"),
        ("<image>a<video>", [LLAVA], {"image": 1}, "video", 1, "token 32001 at position 2 (1 such in all)"),
        ("a<image>b<image>", [BLIP2], {"image": 1}, "image", 3, "token 32000 at position 1 (2 such in all)"),
        ("a<image>", [PromptInsertion("image", end(), [IMAGE])], {"image": 1}, "image", 2, "position 1"),
        ("<image>Ia", [PromptReplacement("image", "<image>", "III")], {"image": 1}, "image", 2, "token 73"),
        ("<image><img>", [LLAVA, PromptReplacement("image", "<img>", "JJ")], {"image": 1}, "image", 2, "'<img>'"),
    ],
)
def test_surplus(prompt, updates, counts, modality, got, words):
    """A placeholder, or a token of placeholders, that stands for no item, in any family and also without items."""
    with pytest.raises(SurplusPlaceholderError) as caught:
        apply(prompt, updates, counts, placeholder_token_ids=RESERVED)
    error, total = caught.value, counts.get(modality, 0)
    assert words in str(error)
    assert (error.modality, error.item, error.expected, error.got) == (modality, total, total, got)


def test_a_landmark_may_be_a_reserved_token():
    """What an insertion names as its target is where it belongs, not a surplus placeholder; a second one is."""
    update = PromptInsertion("image", "<image>", "II")
    assert apply("<image>a", [update], {"image": 1}, placeholder_token_ids=RESERVED)[0] == "<image>IIa"
    with pytest.raises(SurplusPlaceholderError):
        apply("<image>a<image>", [update], {"image": 1}, placeholder_token_ids=RESERVED)


@pytest.mark.parametrize(
    ("prompt", "update", "count", "expected", "got", "position"),
    [
        ("a" + "<image>" * 4, LLAVA, 1, 1, 4, 1),
        ("a" + "<image>" * 8, LLAVA, 2, 1, 4, 1),
        ("<image>a" + "<image>" * 4, LLAVA, 2, 1, 4, 2),
        ("a<img><image></img>", WRAPPED, 1, 1, 3, 1),
        ("<img>" + "<image>" * 4 + "</img>", WHOLE, 1, 3, 6, 0),
        ("a" + "<image>" * 8, WHOLE, 1, 3, 8, 1),
        ("<image>" * 4 + "</s>a", BLIP2, 1, 0, 4, 0),
        ("<image>" * 8 + "</s>a", BLIP2, 2, 0, 4, 0),
        (
            "<image><image><nl>",
            PromptReplacement("image", "<video>", select_id([IMAGE, IMAGE, 32002], IMAGE)),
            1,
            1,
            3,
            0,
        ),
        ("<image><image>", PromptReplacement("image", "<image>", select_id([IMAGE, 32002] * 2, IMAGE)), 1, 1, 2, 0),
    ],
)
def test_already_expanded(prompt, update, count, expected, got, position):
    """A prompt that a Hugging Face processor expanded is recognised, and not expanded again."""
    with pytest.raises(AlreadyExpandedError, match=f"position {position} ") as caught:
        apply(prompt, [update], {"image": count}, placeholder_token_ids=RESERVED)
    error = caught.value
    assert (error.modality, error.item, error.expected, error.got) == ("image", 0, expected, got)


@pytest.mark.parametrize("embeds", [1, 2, 4])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_adjacent_placeholders_are_not_expanded_ones(embeds, count):
    """As many placeholders as items is right, also where they look like the content of one item."""
    update = PromptReplacement("image", "<image>", [IMAGE] * embeds)
    text, places = apply("a" + "<image>" * count, [update], {"image": count}, placeholder_token_ids=RESERVED)
    assert text == "a" + "<image>" * count * embeds
    assert spans(places) == {"image": [(1 + i * embeds, embeds) for i in range(count)]}


@pytest.mark.parametrize("wrong", [-1, 0x110000, 1 << 70, "a", None, 1.5])
def test_no_token_id(wrong):
    """The request is refused, with the value and its position, before anything is searched."""
    with pytest.raises(PromptError, match=re.escape(f"{wrong!r} at position 2")):
        apply_prompt_updates([np.int64(5), 6, wrong], [], {}, tokenize)


# --- refusals: the adapter ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "counts", "words"),
    [
        ([], {"image": 2}, ["no update for image 0 of 2 images", "PromptReplacement"]),
        ([LLAVA], {"image": 1, "audio": 1}, ["no update for audio 0 of 1 audio item"]),
        ([PromptReplacement("depth", "<image>", "II")], {"image": 1}, ["'depth'", "image"]),
        (["<image>"], {"image": 1}, ["'<image>'", "neither"]),
        ([PromptReplacement("image", "", "II")], {"image": 1}, ["image 0", "target '' has no tokens", ".start()"]),
        ([PromptReplacement("image", [], "II")], {"image": 0}, ["target [] has no tokens"]),
        ([PromptReplacement("image", None, "II")], {"image": 1}, ["image 0", "target", "None"]),
        ([PromptReplacement("image", lambda i: 5, "II")], {"image": 1}, ["image 0", "target", "got 5"]),
        ([PromptReplacement("image", [-3], "II")], {"image": 1}, ["image 0", "target", "[-3]"]),
        ([PromptInsertion("image", prefix(7), "II")], {"image": 1}, ["image 0", "prefix", "got 7"]),
        (
            [PromptReplacement("image", "<image>", lambda i: [[1], None][i])],
            {"image": 2},
            ["image 1", "content", "None"],
        ),
        ([PromptReplacement("image", "<image>", [1.5])], {"image": 1}, ["image 0", "content", "[1.5]"]),
        ([PromptReplacement("image", "<image>", [])], {"image": 1}, ["image 0", "0 tokens", "at least one"]),
        ([PromptReplacement("image", "<image>", "")], {"image": 1}, ["image 0", "0 tokens"]),
        ([PromptReplacement("image", "<image>", select_id([5, 6], 7))], {"image": 1}, ["image 0", "2 tokens"]),
        ([PromptReplacement("image", "<image>", select_text("ab", "ba"))], {"image": 1}, ["image 0", "2 tokens"]),
        ([PromptReplacement("image", "<image>", select_text("ab", ""))], {"image": 1}, ["image 0", "2 tokens"]),
        (
            [PromptReplacement("image", "<image>", PromptUpdateDetails([5, 6], is_embed=[True]))],
            {"image": 1},
            ["image 0", "1 flags", "2 tokens"],
        ),
        (
            [LLAVA, PromptReplacement("video", [IMAGE], "VV")],
            {"image": 1, "video": 1},
            ["image and video", "'<image>' (token 32000)"],
        ),
    ],
)
def test_contract_errors(updates, counts, words):
    """A mistake of the adapter is told as such, with the hook, the item and what to do, for any prompt."""
    with pytest.raises(ContractError) as caught:
        apply("<image><image>", updates, counts)
    assert all(word in str(caught.value) for word in ["get_prompt_updates", *words]), caught.value


def test_overlapping_updates():
    """An insertion inside another item's target would tear it apart."""
    updates = [PromptReplacement("image", "ab", "II"), PromptInsertion("video", prefix("a"), "VV")]
    with pytest.raises(ContractError, match="another item's target"):
        apply("ab", updates, {"image": 1, "video": 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda: PromptUpdateDetails([1, 2], is_embed=[0, 2]),
        lambda: PromptUpdateDetails([1, 2], is_embed=[True, False], embed_text="a"),
    ],
)
def test_contract_errors_of_details(make):
    """Flags that are no flags, and two masks for one content, are refused where they are given."""
    with pytest.raises(ContractError, match="is_embed"):
        make()


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_updates_are_plain_data(clone):
    """Nothing callable is stored in what an adapter makes; masks are evaluated when they can be."""
    details = select_id(np.array([5, 6, 5]), 5)
    assert (details.full, details.is_embed) == ((5, 6, 5), (True, False, True))
    for value in (details, select_text("ab", "a"), PromptInsertion("image", prefix([1]), details), LLAVA, end()):
        assert clone(value) == value


# --- against an oracle ----------------------------------------------------------------------------------------------


@given(
    prompt=st.text("abcT", max_size=30),
    target=st.text("abT", min_size=1, max_size=3),
    sizes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 2)), max_size=5),
    extra=st.integers(-1, 1),
)
def test_replacement_against_str_replace(prompt, target, sizes, extra):
    """Python's own `str.replace` decides what is found; too few or too many items raise, the rest is equal.

    Content letters (`x` takes embeddings, `.` does not) never occur in the prompt, so the expanded text tells where
    the placeholders are: `re.finditer` finds them again.
    """
    found = prompt.count(target)
    count = max(0, found + extra)
    shapes = [sizes[i % len(sizes)] if sizes else (0, 1, 0) for i in range(count)]
    contents = ["." * before + "x" * embeds + "." * after + "|" for before, embeds, after in shapes]
    update = PromptReplacement("image", target, lambda i: select_text(contents[i], "x"))
    if count != found:
        with pytest.raises(MissingPlaceholderError if count > found else SurplusPlaceholderError):
            apply(prompt, [update], {"image": count})
        return
    text, places = apply(prompt, [update], {"image": count})
    expected = prompt
    for content in contents:
        expected = expected.replace(target, content, 1)
    assert text == expected
    assert [(p.offset, p.end) for p in places["image"]] == [m.span() for m in re.finditer(r"\.*x+\.*\|", text)]
    for place, content in zip(places["image"], contents, strict=True):
        assert place.is_embed == tuple(c == "x" for c in content)
    for place in reversed(places["image"]):
        text = text[: place.offset] + target + text[place.end :]
    assert text == prompt


@given(
    pieces=st.lists(st.sampled_from(["a", "b", "<image>", "<video>", "<img>"]), max_size=20),
    patches=st.lists(st.integers(1, 4), min_size=20, max_size=20),
    insert=st.sampled_from([None, "start", "end"]),
)
def test_modalities_against_a_walk_through_the_prompt(pieces, patches, insert):
    """Images and videos replaced, audio inserted: equal to walking the prompt token by token with two counters."""
    updates = [
        PromptReplacement("video", "<video>", lambda i: select_id([32003, *[9] * patches[i]], 9)),
        PromptReplacement("image", "<image>", lambda i: [8] * patches[-1 - i]),
        PromptInsertion("audio", start() if insert == "start" else end(), lambda i: [7] * patches[i]),
    ]
    counts = {"image": pieces.count("<image>"), "video": pieces.count("<video>"), "audio": 2 if insert else 0}
    assume("<img>" not in pieces or not any(a == "<img>" and b == "<video>" for a, b in pairwise(pieces)))
    audio = [7] * (patches[0] + patches[1]) if insert else []
    expected, offsets, seen = [], {"image": [], "video": []}, {"image": 0, "video": 0}
    expected += audio if insert == "start" else []
    for piece in pieces:
        modality = piece.strip("<>")
        if modality in seen:
            offsets[modality].append(len(expected))
            i = seen[modality]
            seen[modality] += 1
            expected += [8] * patches[-1 - i] if modality == "image" else [32003, *[9] * patches[i]]
        else:
            expected += tokenize(piece)
    audio_at = 0 if insert == "start" else len(expected)
    expected += audio if insert == "end" else []
    tokens, places = apply_prompt_updates(tokenize("".join(pieces)), updates, counts, tokenize)
    assert tokens == expected
    assert {m: [p.offset for p in places[m]] for m in offsets} == offsets
    assert [p.offset for p in places["audio"]] == ([audio_at, audio_at + patches[0]] if insert else [])
    everything = sorted((p.offset, p.end) for group in places.values() for p in group)
    assert all(left[1] <= right[0] for left, right in pairwise(everything))
    for modality, embed in (("image", 8), ("video", 9), ("audio", 7)):
        for place in places[modality]:
            mask = place.is_embed or (True,) * place.length
            span = tokens[place.offset : place.end]
            assert [token == embed for token in span] == list(mask)


# --- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filler", ["mixed", "repeats"])
def test_long_prompts_are_cheap(filler):
    """100,000 tokens and 50 items of 576, each with contents of its own: fewer calls of any function than tokens.

    A search of the prompt for each item, token by token, would make millions.
    """
    text = [i % 997 + 3 for i in range(100_000)] if filler == "mixed" else [5] * 100_000
    for i in range(50):
        text[i * 1999] = IMAGE
    update = PromptReplacement("image", [IMAGE], lambda i: select_id([5] * 300 + [IMAGE] * 576 + [i], IMAGE))
    calls = Counter()
    sys.setprofile(lambda frame, event, arg: calls.update([event]))
    try:
        tokens, places = apply_prompt_updates(text, [update], {"image": 50}, tokenize, placeholder_token_ids=RESERVED)
    finally:
        sys.setprofile(None)
    assert len(tokens) == 100_000 + 50 * 876
    assert len(places["image"]) == 50
    assert calls["call"] + calls["c_call"] < 50_000


# --- what an expanded prompt holds none of ----------------------------------------------------------------------------


def test_targets_that_no_item_changes():
    """Targets of replacements alone are returned, and only those that are the same for every item."""
    updates = [
        PromptReplacement("image", target=[IMAGE], replacement="a"),
        PromptReplacement("image", target="<nl><img>", replacement="a"),  # <img> may stand alone elsewhere
        PromptReplacement("image", target=lambda i: [SPECIAL["</img>"]], replacement="a"),
        PromptInsertion("video", target=[VIDEO], insertion="a"),
        PromptReplacement("video", target=start(), replacement="a"),
        PromptReplacement("video", target="<nl>", replacement="a"),
    ]
    assert replaced_targets(updates, tokenize) == [[IMAGE], [*tokenize("<nl><img>")], [SPECIAL["<nl>"]]]
