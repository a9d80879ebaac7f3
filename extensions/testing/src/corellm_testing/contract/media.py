"""Rules about media: any form of an item is taken or refused by name, and the encoder's output fits the prompt."""

from __future__ import annotations

from typing import Any

from corellm.errors import MediaError
from corellm_testing.contract.base import ContractRules
from corellm_testing.items import forms_of, make_audio, make_image, make_video, odd_images, turned_image
from corellm_testing.subject import Subject, describe, extreme_items, same_data


class MediaRules(ContractRules):
    """Odd and extreme items."""

    def test_odd_images(self, subject: Subject) -> None:
        """Images of every mode, tiny, long, turned and of 16 bits are embedded, or refused with a typed error."""
        if "image" not in subject.modalities:
            return
        accepted = 0
        for what, image in odd_images().items():
            features = self.taken(subject, "image", image, f"an image ({what})")
            accepted += len(features)
            self.fits_placeholder(subject, features, f"an image ({what})")
        self.require(
            accepted >= 8,
            "call_hf_processor",
            expected="most of them taken",
            got=f"{accepted} of {len(odd_images())}",
            fix="refuse only what the processor cannot take",
        )

    def test_turned_images_stand_upright(self, subject: Subject) -> None:
        """An image rotated by its EXIF orientation becomes the same tensors as the upright image."""
        if "image" not in subject.modalities:
            return
        turned, upright = turned_image()
        self._same_item(subject, "image", upright, turned, "a file with an EXIF orientation")

    def test_every_form_of_an_item_is_the_same(self, subject: Subject) -> None:
        """An item becomes the same tensors as array, as object and as a file's bytes."""
        for modality in subject.modalities:
            usual, forms = forms_of(modality, subject.sampling_rate if modality == "audio" else 0)
            for what, form in forms.items():
                self._same_item(subject, modality, usual, form, what)

    def _same_item(self, subject: Subject, modality: str, usual: Any, other: Any, what: str) -> None:
        __tracebackhide__ = True
        fix = "let corellm.multimodal.DataParser read media"
        with self.expecting(f"{modality}: {what} is processed", hook="get_data_parser", fix=fix):
            (one,), (two,) = (subject.features(modality, item) for item in (usual, other))
        self.require(
            same_data(one.data, two.data),
            "get_data_parser",
            expected=f"{modality}: {what} becomes the same tensors as {describe(usual)}",
            got="others",
            fix=fix,
        )

    def test_short_videos_and_audio(self, subject: Subject) -> None:
        """A video of a single frame, as array and as list of images, and short audio are embedded."""
        if "video" in subject.modalities:
            frames, metadata = make_video(1, 48, 40)
            for video in (frames, (frames, metadata), [make_image(48, 40)]):
                with self.expecting("a video of one frame is processed"):
                    self.fits_placeholder(subject, subject.features("video", video), "a video of one frame")
        if "audio" in subject.modalities:
            with self.expecting("audio of a tenth of a second is processed"):
                audio = make_audio(subject.sampling_rate // 10, subject.sampling_rate)
                self.fits_placeholder(subject, subject.features("audio", audio), "short audio")

    def test_broken_media_are_refused(self, subject: Subject) -> None:
        """Bytes that are no item, and empty ones, are refused with a `MediaError` that names modality and index."""
        for modality in subject.modalities:
            for broken in (b"", b"\x89PNG\r\n\x1a\n and no more", bytes(64)):
                with self.refusing(
                    "get_data_parser",
                    f"{modality} 0, {len(broken)} bytes of another format",
                    MediaError,
                    words=f"{modality} 0",
                    fix="let corellm.multimodal.DataParser read media",
                ):
                    subject.features(modality, broken)

    # --- the encoder ------------------------------------------------------------------------------------------------

    def test_rows_match_the_mask(self, subject: Subject) -> None:
        """The encoder returns exactly as many embeddings for an item as its placeholder's mask takes, of one width."""
        for modality in subject.modalities:
            for seed in range(6):
                item = subject.item(modality, 7 * seed)
                with self.expecting(f"{describe(item)} is processed"):
                    features = subject.features(modality, item)
                self.fits_placeholder(subject, features, describe(item))
            for kwargs in self.arguments(subject):
                with self.expecting(f"{dict(kwargs)} is accepted"):
                    features = subject.features(modality, subject.item(modality, 3), **kwargs)
                self.fits_placeholder(subject, features, f"an item processed with {dict(kwargs)}")
            for item in extreme_items(subject, modality):
                self.fits_placeholder(subject, self.taken(subject, modality, item, describe(item)), describe(item))
