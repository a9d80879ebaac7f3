"""Rules about a checkpoint's files: entries that older checkpoints lack, and files that change between two loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from corellm.errors import CheckpointError, CorellmError
from corellm.loading.checkpoint import load_hf_config, load_tokenizer
from corellm.plugin.manager import call_static_hook
from corellm_testing.contract.base import ContractRules
from corellm_testing.contract.processing import ODD_TEXTS, tokenizers_hook
from corellm_testing.quick import slow
from corellm_testing.reference import Media, token_ids_of
from corellm_testing.subject import Subject

_OF_PROCESSORS = ("processor_config.json", "preprocessor_config.json")


class FileRules(ContractRules):
    """Checkpoints whose files differ from the tiny one's. No weights are loaded."""

    @slow()
    def test_entries_that_older_checkpoints_lack(self, subject: Subject, tmp_path: Path) -> None:
        """Without an entry of the processor's file that the reference does without, token ids are the same.

        Each entry in turn is left out; a `CheckpointError` will do, too.
        """
        prompts = [subject.prompt(["What?", (name, subject.item(name, 5))]) for name in subject.modalities]
        usual = [subject.process(*prompt).token_ids for prompt in prompts]
        fix = "a processor's entry may be missing, and be None then: read what config.json says of the model"
        for number, (file, entry, rest) in enumerate(_each_left_out(subject.checkpoint)):
            path = shutil.copytree(subject.checkpoint, tmp_path / str(number))
            (path / file).write_text(json.dumps(rest), encoding="utf-8")
            if self._ids_of_reference(path, prompts) != usual:
                continue  # it needs the entry, or is another processor without it
            what = f"a checkpoint whose {file} has no {entry!r}"
            with self.expecting(f"{what} is served or refused", hook="get_prompt_updates", fix=fix):
                try:
                    with subject.opened({}, path) as inputs:
                        got = [subject.process(*prompt, inputs=inputs).token_ids for prompt in prompts]
                except CheckpointError:
                    continue
            self.require(
                got == usual, "get_prompt_updates", expected=f"for {what}, as for others: {usual}", got=got, fix=fix
            )

    @slow()
    def test_a_changed_directory_is_read_anew(self, subject: Subject, tmp_path: Path) -> None:
        """A directory whose files are others than at the last load is loaded as they are now.

        Numbers of its processor are changed, then all files are those of the first of `VARIANTS`.
        """
        edited = shutil.copytree(subject.checkpoint, tmp_path / "edited")
        _change_numbers(edited)
        first = next(iter(self.variants().values()), {})
        others = [edited, self.make_checkpoint(tmp_path / "variant", **first)]
        path = shutil.copytree(subject.checkpoint, tmp_path / "path")
        with self.expecting("a copy of the tiny checkpoint is opened"):
            self._read(subject, path)
        fix = "keep nothing by a directory's path: its files may change"
        for other in others:
            shutil.rmtree(path)
            shutil.copytree(other, path)
            try:
                want = self._read(subject, other)
            except CorellmError:  # refused, or not usable with other numbers, where it is new, too
                continue
            with self.expecting("a directory with other files than before is opened", hook="register_config", fix=fix):
                got = self._read(subject, path)
            for hook, what in want.items():
                self.require(
                    got[hook] == what,
                    hook,
                    expected="of a directory with other files than before what a new one with them gives",
                    got="something else: it was loaded before",
                    fix=fix,
                )

    def test_text_is_normalized_as_the_tokenizers_file_says(self, subject: Subject, tmp_path: Path) -> None:
        """With another normalizer in `tokenizer.json`, the token ids of a text are the reference's, too.

        It takes away accents and surplus spaces: whatever of these the checkpoint's own normalizer keeps.
        """
        if not (subject.checkpoint / "tokenizer.json").is_file():
            return
        path = shutil.copytree(subject.checkpoint, tmp_path / "normalized")
        _normalize_more(path / "tokenizer.json")
        reference = self.reference(path)
        with (
            closing(reference),
            self.expecting("a checkpoint with another normalizer in tokenizer.json is opened"),
            subject.opened({}, path) as inputs,
        ):
            for text in ODD_TEXTS:
                try:
                    want = token_ids_of(reference.process(text, {}, {}))
                except Exception:  # whatever the processor raises: there is nothing to compare with
                    continue
                got = subject.process(text, inputs=inputs).token_ids
                self.require(
                    got == want,
                    tokenizers_hook(self.adapter),
                    expected=f"for {text!r}, with NFKD, StripAccents and single spaces: {want}",
                    got=got,
                    fix="keep the normalizer of the checkpoint's tokenizer.json, and put none of your own in its place",
                )

    def _read(self, subject: Subject, path: Path) -> Mapping[str, Any]:
        """Return what is read from a checkpoint's files, by the hook that decides how: with items that it processes."""
        trusted = subject.context.trust_remote_code
        register = partial(call_static_hook, self.adapter, distribution=self.adapter.__module__)
        config = load_hf_config(path, register("register_config"), trust_remote_code=trusted)
        tokenizer = load_tokenizer(path, register("register_tokenizer"), trust_remote_code=trusted)
        with subject.opened({}, path) as inputs:
            text = inputs.mm_processor.hooks.get_dummy_text
            items = [
                subject.process(text(mm_counts={name: 1}) + "What?", {name: [subject.item(name, 5)]}, inputs=inputs)
                for name in subject.modalities
            ]
        return {
            "register_config": str(config.to_dict()).replace(str(path), ""),
            "register_tokenizer": tokenizer.get_vocab(),
            "register_processor or call_hf_processor": [
                (one.token_ids, [dict(feature.data) for feature in one.features]) for one in items
            ],
        }

    def _ids_of_reference(self, path: Path, prompts: Sequence[tuple[str, Media]]) -> list[list[int]] | None:
        """Return the token ids of the reference of a checkpoint; None where it cannot be made, or fails."""
        reference = self.reference(path)
        try:
            return [token_ids_of(reference.process(*prompt, {})) for prompt in prompts]
        except Exception:  # whatever transformers raises
            return None
        finally:
            reference.close()


def _each_left_out(checkpoint: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield `(file, entry, what is left of the file without it)` of a checkpoint's processors."""
    for file, content in _of_processors(checkpoint):
        for entry in content:
            yield file.name, entry, {name: value for name, value in content.items() if name != entry}


def _normalize_more(file: Path) -> None:
    """Put before the normalizer of a `tokenizer.json` one that takes away accents and surplus spaces."""
    content = json.loads(file.read_text(encoding="utf-8"))
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    more = [{"type": "NFKD"}, {"type": "StripAccents"}, spaces]
    own = [content["normalizer"]] if content["normalizer"] is not None else []
    content["normalizer"] = {"type": "Sequence", "normalizers": [*more, *own]}
    file.write_text(json.dumps(content), encoding="utf-8")


def _change_numbers(checkpoint: Path) -> None:
    """Change the fractions in the files of a checkpoint's processors, means and factors."""
    for file, content in _of_processors(checkpoint):
        file.write_text(json.dumps(_changed(content)), encoding="utf-8")


def _changed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _changed(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_changed(one) for one in value]
    return value * 0.75 if isinstance(value, float) else value  # 0 stays: dithering by noise stays off


def _of_processors(checkpoint: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for name in _OF_PROCESSORS:
        if (checkpoint / name).is_file():
            yield checkpoint / name, json.loads((checkpoint / name).read_text(encoding="utf-8"))
