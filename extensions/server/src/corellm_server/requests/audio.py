"""Bodies of `/v1/audio/transcriptions` and `/translations`, which are forms: every field but the file comes as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import ConfigDict, WithJsonSchema

from corellm.known_fields import Absent
from corellm_server.errors import ApiError
from corellm_server.form import UploadedFile
from corellm_server.requests.body import FIRST_ERROR, Body


class TranscriptionRequest(Body):
    """`POST /v1/audio/transcriptions`."""

    model_config = ConfigDict(strict=False, arbitrary_types_allowed=True)

    REFUSED: ClassVar[Mapping[str, Absent]] = {
        "chunking_strategy": Absent(("auto",), "long audio is always cut, as the model has it; leave it out"),
        "include": Absent((), "log-probabilities are not reported; use /v1/chat/completions with the audio as a part"),
        "known_speaker_names": Absent((), "speakers are not told apart"),
        "known_speaker_references": Absent((), "speakers are not told apart"),
    }

    file: Annotated[UploadedFile, WithJsonSchema({"type": "string", "format": "binary"})]
    """The audio, in any format that the server reads; its name and type do not matter."""
    model: str
    """A name of `/v1/models`."""
    language: str | None = None
    """The language that is spoken."""
    languages: Annotated[list[str], FIRST_ERROR] | None = None
    """Languages that may be spoken."""
    keywords: Annotated[list[str], FIRST_ERROR] | None = None
    """Words that may be said."""
    prompt: str | None = None
    """What else the model is told of the audio, or what was said before."""
    response_format: str = "json"
    """`json`, or `text` for the text alone; of a model that tells times `verbose_json`, `srt` or `vtt`."""
    timestamp_granularities: Annotated[list[str], FIRST_ERROR] | None = None
    """`segment`, `word` or both, with `verbose_json`; `segment` by default."""
    temperature: float = 0.0
    """0 is greedy."""
    seed: int | None = None
    """Makes sampling repeat exactly."""
    stream: bool | None = None
    """Send the text as events while it is generated."""
    max_completion_tokens: int | None = None
    """Most tokens to generate, for each piece of audio that is cut; by default as many as the model takes."""

    TRANSLATES: ClassVar[bool] = False
    """Whether the text is to be in English, else in the language that is spoken."""
    ASKED: ClassVar[str] = "Transcribe the audio."
    """What the model is asked in a conversation."""

    @property
    def language_alone(self) -> str | None:
        """The language that is spoken, where there is no choice of several."""
        named = self._languages
        return named[0] if len(named) == 1 else None

    @property
    def fits_a_form(self) -> bool:
        """Whether a language, and what else the model is told as text, are all that the request says of the audio."""
        return len(self._languages) < 2 and not self.keywords

    @property
    def _languages(self) -> list[str]:
        return [language for language in (self.language, *(self.languages or ())) if language]

    @property
    def instruction(self) -> str:
        """What the model is asked in a conversation, after the audio."""
        languages = self._languages
        told = [self.ASKED]
        if languages:
            told.append(f"The language is {' or '.join(languages)}.")
        if self.keywords:
            told.append(f"It may have these words: {', '.join(self.keywords)}.")
        if self.prompt:
            told.append(f"Context: {self.prompt}")
        return " ".join(told)

    def check_tells_nothing(self) -> None:
        """Refuse what the model would be told of the audio: an encoder-decoder reads audio alone.

        Raises:
            ApiError: names the field.
        """
        for name in ("language", "languages", "keywords", "prompt"):
            if getattr(self, name):
                raise ApiError(
                    400, f"{name}: this model reads audio and takes no instructions beside one language and a prompt; "
                    "leave it out",
                    param=name, code="unsupported_parameter",
                )  # fmt: skip


class TranslationRequest(TranscriptionRequest):
    """`POST /v1/audio/translations`."""

    TRANSLATES = True
    ASKED = "Translate the audio into English."
