"""The rule about prompts that ask for what is said: they have the audio, and what the model is told."""

from __future__ import annotations

from corellm.errors import RequestError
from corellm.plugin.hook_callers import adapter_implements
from corellm_testing.contract.base import ContractRules
from corellm_testing.subject import Subject

_HOOK = "get_transcription_prompt"


class TranscriptionRules(ContractRules):
    """A family's own form for transcriptions, where it has one."""

    def test_a_transcription_is_asked_for(self, subject: Subject) -> None:
        """The prompt that asks for what is said takes one audio item and the languages told; text in it stays text."""
        if not adapter_implements(subject.hooks.get_transcription_prompt):
            return
        asked = {language: self._asked(subject, language) for language in (None, "en", "de")}
        self.require(
            asked["en"] != asked["de"] or asked["en"] is None,
            _HOOK,
            expected="other tokens for another language",
            got=f"for 'en' and for 'de' {asked['en']}",
            fix="write the language, or return None to be asked in a conversation",
        )
        known = set(asked["en"] or ()) | set(asked["de"] or ())
        names = subject.context.tokenizer.convert_ids_to_tokens
        # the form's own apart: one more placeholder is refused by the engine, whatever else is typed beside it
        texts = ("".join(names(sorted(subject.special_token_ids - known))), "".join(names(sorted(known))))
        for language, context in (pair for typed in texts for pair in ((typed, ""), ("en", typed))):
            placed = set(self._asked(subject, language, context) or ()) - known
            self.require(
                not placed & subject.special_token_ids,
                _HOOK,
                expected=f"no special token of what a request says: language {language!r}, context {context!r}",
                got=f"{subject.decoded(sorted(placed & subject.special_token_ids))!r}",
                fix="refuse what is no text with corellm.errors.PromptError",
            )

    def _asked(self, subject: Subject, language: str | None, context: str = "") -> list[int] | None:
        """Return the prompt's tokens, once it is processed with an item; None if there is none, or it is refused."""
        __tracebackhide__ = True
        inputs = subject.inputs
        with self.expecting(f"a transcription is asked for with the language {language!r}", hook=_HOOK):
            try:
                tokens = inputs.transcription_prompt(language, translate=False, context=context)
            except RequestError:
                return None
            if tokens is not None:
                rate, samples = subject.sampling_rate, subject.item("audio", 1)
                inputs.process({"prompt_token_ids": tokens, "multi_modal_data": {"audio": [(samples, rate)]}})
        return tokens
