"""Message parts in all their spellings become the same few, and media keep their order."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from corellm.errors import MediaError, PromptError
from corellm.multimodal.chat import collect_media, guard_text, normalize_messages, render_chat


@pytest.mark.parametrize(
    ("part", "modality", "media"),
    [
        ({"type": "image", "image": "a.png"}, "image", "a.png"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, "image", "data:image/png;base64,AA"),
        ({"type": "video", "video": "file:///b.mp4"}, "video", "/b.mp4"),
        ({"type": "video_url", "video_url": {"url": "b.mp4"}}, "video", "b.mp4"),
        ({"type": "video", "video": ("frames", {"fps": 2})}, "video", ("frames", {"fps": 2})),
        ({"type": "audio", "audio": b"bytes"}, "audio", b"bytes"),
        (
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            "audio",
            "data:audio/wav;base64,UklGRg==",
        ),
    ],
)
def test_media_parts(part: dict[str, Any], modality: str, media: Any) -> None:
    """OpenAI's and Hugging Face's names for the same thing."""
    (message,) = normalize_messages([{"role": "user", "content": [part]}], [])
    assert message["content"] == [{"type": modality, modality: media}]


def test_media_of_a_conversation_keep_their_order() -> None:
    """Of each modality, through all messages."""
    contents = [["i1", "v1", "i2"], ["a1", "i3"], ["v2", "a2"]]
    names = {"i": "image", "v": "video", "a": "audio"}
    messages = [
        {"role": "user", "content": [{"type": names[m[0]], names[m[0]]: m} for m in content]} for content in contents
    ]
    assert collect_media(normalize_messages(messages, [])) == {
        "image": ["i1", "i2", "i3"],
        "video": ["v1", "v2"],
        "audio": ["a1", "a2"],
    }


def test_the_assistants_own_tokens() -> None:
    """Literals of the assistant's messages may be fewer: what a model wrote is read back as it wrote it."""
    messages = [{"role": role, "content": "<box> </s>"} for role in ("user", "assistant")]
    user, assistant = normalize_messages(messages, ["<box>", "</s>"], assistant=["</s>"])
    assert user["content"][0]["text"] == guard_text("<box> </s>", ["<box>", "</s>"])
    assert assistant["content"][0]["text"] == guard_text("<box> </s>", ["</s>"])


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (
            [{"type": "hologram", "hologram": 1}],
            PromptError,
            r"messages\[0\].content\[0\].type 'hologram' is not known",
        ),
        (["hi", {"type": "video"}], MediaError, r"messages\[0\].content\[1\] has no 'video'"),
        ([{"type": "text", "text": 1}], PromptError, r"content\[0\].text must be a string"),
        (7, PromptError, "must be text or a list of parts"),
    ],
)
def test_malformed_parts(content: Any, error: type[Exception], words: str) -> None:
    """Each names the part."""
    with pytest.raises(error, match=words):
        normalize_messages([{"role": "user", "content": content}], [])


PUBLISHED = """\
{% set audio_count = namespace(value=0) %}{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}\
{% if 'audio' in content or 'audio_url' in content%s %}{% set audio_count.value = audio_count.value + 1 %}\
Audio {{ audio_count.value }}: <|audio_bos|><|AUDIO|><|audio_eos|>
{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}"""


@pytest.mark.parametrize("also", ["", " or content['type'] == 'audio'"])
def test_templates_find_media_by_key_or_by_type(also: str) -> None:
    """Published templates do either; both place every sound, and neither sees its samples."""

    class Renderer:
        def apply_chat_template(self, conversation: Any, *, chat_template: str, **_: Any) -> str:
            assert not any(isinstance(p.get("audio"), bytes) for m in conversation for p in m["content"])
            return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(chat_template).render(
                messages=conversation
            )  # fmt: skip

    messages = normalize_messages(
        [{"role": "user", "content": [{"type": "audio", "audio": b"a"}, "and", {"type": "audio", "audio": b"b"}]}], []
    )
    template = PUBLISHED.replace("%s", also)
    chat = render_chat(messages, template, Renderer(), lambda *_: None, add_generation_prompt=False)
    assert isinstance(chat.prompt, str)
    sound = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    assert chat.prompt.split("user\n")[1].startswith(f"Audio 1: {sound}\nandAudio 2: {sound}\n<|im_end|>")
    assert chat.mm_data == {"audio": [b"a", b"b"]}
