"""Rules about media: any form people have is taken or refused by name, and memory is planned for the worst case."""

from __future__ import annotations

from typing import Any

from corellm.errors import MediaError, RequestError
from corellm.testing.contract.base import Contract
from corellm.testing.contract.limits import extreme_items
from corellm.testing.items import make_clip, make_picture, make_sound, odd_pictures, turned_picture
from corellm.testing.subject import Subject, describe


class MediaRules(Contract):
    """Odd and extreme items."""

    def test_odd_pictures(self, subject: Subject) -> None:
        """Pictures of every mode, tiny, long, turned and of 16 bits are answered, or refused with a typed error."""
        if "image" not in subject.modalities:
            return
        accepted = 0
        for what, picture in odd_pictures().items():
            try:
                (feature,) = subject.features("image", picture)
            except RequestError:
                continue
            except Exception as error:
                self.fail(
                    "call_hf_processor",
                    expected=f"a picture ({what}) is taken, or refused with a RequestError",
                    got=f"{type(error).__name__}: {error}",
                    fix="refuse what the processor cannot take with a MediaError",
                )
            accepted += 1
            self._rows_match(subject, [feature], f"a picture: {what}")
        self.require(
            accepted >= 8,
            "call_hf_processor",
            expected="most of them taken",
            got=f"{accepted} of {len(odd_pictures())}",
            fix="refuse only what the processor cannot take",
        )

    def test_turned_pictures_stand_upright(self, subject: Subject) -> None:
        """A picture that EXIF says is turned is the same item as the one that stands upright."""
        if "image" not in subject.modalities:
            return
        turned, upright = turned_picture()
        (one,), (other,) = subject.features("image", turned), subject.features("image", upright)
        self.require(
            one.identifier == other.identifier and dict(one.data) == dict(other.data),
            "get_data_parser",
            expected="the same item",
            got="another one",
            fix="let corellm.multimodal.DataParser read pictures",
        )

    def test_short_clips_and_sounds(self, subject: Subject) -> None:
        """A clip of a single frame, as array and as list of pictures, and a short sound are answered."""
        if "video" in subject.modalities:
            frames, metadata = make_clip(1, 48, 40)
            for clip in (frames, (frames, metadata), [make_picture(48, 40)]):
                with self.expecting("a clip of one frame is processed"):
                    self._rows_match(subject, subject.features("video", clip), "a clip of one frame")
        if "audio" in subject.modalities:
            with self.expecting("a sound of a tenth of a second is processed"):
                sound = make_sound(subject.sampling_rate // 10, subject.sampling_rate)
                self._rows_match(subject, subject.features("audio", sound), "a short sound")

    def test_broken_media_are_refused(self, subject: Subject) -> None:
        """Bytes that are no picture, clip or sound, and empty ones, are refused with a `MediaError` that counts."""
        for modality in subject.modalities:
            for broken in (b"", b"\x89PNG\r\n\x1a\n and no more", bytes(64)):
                with self.refusing(
                    "get_data_parser",
                    f"{modality} 0, {len(broken)} bytes that are none",
                    MediaError,
                    words=f"{modality} 0",
                    fix="let corellm.multimodal.DataParser read media",
                ):
                    subject.features(modality, broken)

    # --- the encoder ------------------------------------------------------------------------------------------------

    def test_rows_match_the_mask(self, subject: Subject) -> None:
        """The encoder gives each item exactly as many rows as its placeholder's mask has room for, of one width."""
        for modality in subject.modalities:
            for seed in range(6):
                item = subject.item(modality, 7 * seed)
                with self.expecting(f"{describe(item)} is processed"):
                    features = subject.features(modality, item)
                self._rows_match(subject, features, describe(item))
            for kwargs in self.arguments(subject):
                with self.expecting(f"{dict(kwargs)} is accepted"):
                    features = subject.features(modality, subject.item(modality, 3), **kwargs)
                self._rows_match(subject, features, f"an item processed with {dict(kwargs)}")
            for item in extreme_items(subject, modality):
                try:
                    features = subject.features(modality, item)
                except RequestError:
                    continue
                self._rows_match(subject, features, describe(item))

    def _rows_match(self, subject: Subject, features: list[Any], what: str) -> None:
        __tracebackhide__ = True
        width = subject.embedding_width
        want = [(feature.placeholder.num_embeds, width) for feature in features]
        with self.expecting(f"{what} is embedded"):
            got = [tuple(rows.shape) for rows in subject.embed(features)]
        self.require(
            got == want,
            "get_prompt_updates and get_multimodal_embeddings",
            expected=f"for {what}: {want} rows and columns",
            got=got,
            fix="count an item's tokens in get_prompt_updates as its rows are made in get_multimodal_embeddings",
        )
