"""Rules about processor arguments: a request's change its items as they change the processor's, each of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from corellm.config import KWARGS_GROUPS
from corellm.errors import ProcessorKwargsError, RequestError
from corellm.llm import LLM
from corellm.multimodal.defaults import SUBPROCESSORS, accepted_processor_kwargs, declared_types
from corellm.multimodal.processor_kwargs import kwargs_names
from corellm_testing.argument_values import current_value, values_to_try
from corellm_testing.contract.processing import ProcessingRules, reference_output
from corellm_testing.quick import slow
from corellm_testing.rules import guilty_hook
from corellm_testing.subject import Part, Subject, large_item, same_output

_TAKE = (
    "hand the argument to the processor, or do what it does; say in without_effect of the contract class why it is "
    "refused"
)


@dataclass(frozen=True)
class Argument:
    """An argument that the processor takes for items of a modality."""

    name: str
    values: Sequence[Any]
    """To try."""
    current: Any
    """The checkpoint's value; None where it has none."""
    parts: Sequence[Part]
    """Parts of the prompt that it was tried on: with two items, or with one where only that has an effect."""
    outputs: Sequence[tuple[Any, Mapping[str, Any]]]
    """`(value, the reference's output)` of up to two values that differ in effect; fewer if no two do. Of a text also
    with spaces and a line's end around it, where these have an effect."""


class ArgumentRules(ProcessingRules):
    """A request's and the operator's `mm_processor_kwargs`."""

    @pytest.fixture(scope="class")
    @classmethod
    def processor_arguments(cls, subject: Subject) -> dict[str, list[Argument]]:
        """The processor's arguments by modality, with the reference's outputs, once for all rules."""
        return {
            modality: [_argument(cls, subject, modality, name, kind) for name, kind in _types(cls, subject, modality)]
            for modality in subject.modalities
        }

    @slow()
    def test_every_processor_argument_is_kept(
        self, subject: Subject, processor_arguments: Mapping[str, Sequence[Argument]]
    ) -> None:
        """Each argument that the processor names changes every item's tokens and tensors as it changes the processor's.

        Tried with two values that differ in effect, on two items; the request's values are not written to. An argument
        in `without_effect` is refused, or changes nothing.
        """
        names = {argument.name for arguments in processor_arguments.values() for argument in arguments}
        unknown = sorted({*self.without_effect} - names)
        self._declared(not unknown, "arguments of the processor in without_effect", ", ".join(unknown))
        compared, refused = 0, dict[str, RequestError]()
        for arguments in processor_arguments.values():
            for argument in arguments:
                if argument.name in self.without_effect:
                    self._changes_nothing(subject, argument)
                    continue
                what = f"values of the processor's argument {argument.name!r} to try, or why it has no effect"
                self._declared(bool(argument.values), what, "neither argument_values nor without_effect names it")
                for value, want in argument.outputs if len(argument.outputs) > 1 else ():
                    compared += 1
                    kwargs = {argument.name: copy.deepcopy(value)}
                    self._takes(subject, argument.parts, kwargs, want, refused)
                    self.require(
                        kwargs == {argument.name: value},
                        "call_hf_processor or get_prompt_updates",
                        expected=f"the request's arguments as they were: {argument.name}={value!r}",
                        got=kwargs,
                        fix="copy what you change: mm_kwargs and what is in it are the caller's",
                    )
        self._none_refused(refused)
        what = "an argument that changes the reference's output, or why none has an effect"
        self._declared(compared > 0 or bool(self.without_effect) or not names, what, f"none of {sorted(names)} does")

    @slow()
    def test_a_requests_arguments_win(
        self, subject: Subject, processor_arguments: Mapping[str, Sequence[Argument]]
    ) -> None:
        """A request's argument goes before the operator's, all others of the operator's stay, and none is changed."""
        operators = dict[str, dict[str, Any]]()
        for modality, arguments in processor_arguments.items():
            stated = operators.setdefault(KWARGS_GROUPS[modality], {})
            for argument in arguments:
                if argument.name not in self.without_effect and len(argument.outputs) > 1:
                    value = argument.outputs[1][0] if argument.current is None else argument.current
                    if reference_output(subject, argument.parts, {**stated, argument.name: value}) is not None:
                        stated[argument.name] = value
        if not any(operators.values()):
            return  # the processor has no argument that an operator could set
        given, compared, refused = copy.deepcopy(operators), 0, dict[str, RequestError]()
        fix = (
            "make the dummies with the operator's arguments (context.kwargs_for); say in without_effect of the "
            "contract class why an argument is refused"
        )
        with (
            self.expecting(f"a model loads with {operators}", hook="get_dummy_mm_data", fix=fix),
            LLM(str(subject.checkpoint), dtype="float32", mm_processor_kwargs=given) as llm,
        ):
            for modality, arguments in processor_arguments.items():
                stated = operators[KWARGS_GROUPS[modality]]
                for argument in [argument for argument in arguments if argument.name in stated]:
                    kwargs = {argument.name: argument.outputs[0][0]}
                    usual, want = (
                        reference_output(subject, argument.parts, {**stated, **more}) for more in ({}, kwargs)
                    )
                    if usual is not None and want is not None and not same_output(want, usual):
                        self._takes(subject, argument.parts, kwargs, want, refused, llm)
                        compared += 1
        self._none_refused(refused)
        self._declared(compared > 0, f"an argument that changes something beside {operators}", "none does")
        self.require(
            given == operators,
            "call_hf_processor or get_prompt_updates",
            expected=f"the operator's arguments as they were: {operators}",
            got=given,
            fix="copy what you change: the operator's arguments hold for every request",
        )

    @slow()
    def test_operators_arguments_hold_for_every_request(self, subject: Subject) -> None:
        """Arguments given when the model is loaded apply to every request, as if it had brought them."""
        for kwargs in self.arguments(subject):
            with ExitStack() as stack:
                with self.expecting(f"a model loads with {dict(kwargs)}"):
                    inputs = stack.enter_context(subject.opened(kwargs))
                    assert inputs.mm_processor.profile  # the dummies, which a load processes
                for modality in subject.modalities:
                    parts: list[Part] = ["What?", (modality, subject.item(modality, 3))]
                    got = subject.process(*subject.prompt(parts), inputs=inputs)
                    self.same_as_reference(subject, parts, got, self.of_reference(subject, parts, kwargs), kwargs)

    def test_processor_arguments_mean_what_they_mean(self, subject: Subject) -> None:
        """A request's `mm_processor_kwargs` change tokens and tensors as they change the Hugging Face processor's."""
        accepted = accepted_processor_kwargs(subject.context.hf_processor)
        for modality in subject.modalities:
            parts = _two_items(subject, modality)
            text, media = subject.prompt(parts)
            for kwargs in self.arguments(subject):
                with self.expecting(f"{dict(kwargs)} is accepted", hook="call_hf_processor"):
                    got = subject.process(text, media, kwargs)
                self.same_as_reference(subject, parts, got, self.of_reference(subject, parts, kwargs), kwargs)
        self.require(
            bool(self.arguments(subject)) or accepted == frozenset(),
            "the contract class",
            expected=f"an example of the arguments that the processor takes: {sorted(accepted or ())}",
            got="processor_kwargs = ()",
            fix="name one or more that change an item's tensors in processor_kwargs",
        )

    def test_unknown_processor_arguments_are_refused(self, subject: Subject) -> None:
        """An argument that the processor does not know is refused with an error that names it."""
        for modality in subject.modalities:
            item = subject.item(modality, 0)
            with self.refusing(
                "call_hf_processor",
                "the argument 'colour_of_the_moon'",
                ProcessorKwargsError,
                words="'colour_of_the_moon'",
                fix="raise ProcessorKwargsError with the accepted names before anything "
                "is processed; the core's default does, as far as the processor says what it takes",
            ):
                subject.features(modality, item, colour_of_the_moon=1)

    def _takes(
        self,
        subject: Subject,
        parts: Sequence[Part],
        kwargs: Mapping[str, Any],
        want: Mapping[str, Any],
        refused: dict[str, RequestError],
        llm: LLM | None = None,
    ) -> None:
        """Require a request with arguments to become the reference's tokens and tensors, or add it to `refused`."""
        __tracebackhide__ = True
        inputs = subject.inputs if llm is None else llm.engine.input_processor
        with self.expecting(f"{dict(kwargs)} is taken, as by the processor", hook="call_hf_processor", fix=_TAKE):
            try:
                got = subject.process(*subject.prompt(parts), kwargs, inputs=inputs)
            except RequestError as error:
                if not _is_beyond_plan(error, inputs.mm_processor.profile.max_embeds):
                    refused[str(dict(kwargs))] = error
                return
        self.same_as_reference(subject, parts, got, want, kwargs)

    def _none_refused(self, refused: Mapping[str, RequestError]) -> None:
        """Require that no request was refused that the reference takes; all are told at once."""
        __tracebackhide__ = True
        self.require(
            not refused,
            guilty_hook(next(iter(refused.values()), None), "call_hf_processor"),
            expected=f"taken, as by the processor: {', '.join(refused)}",
            got="\n".join(f"{kwargs}: {type(error).__name__}: {error}" for kwargs, error in refused.items()),
            fix=_TAKE,
        )

    def _changes_nothing(self, subject: Subject, argument: Argument) -> None:
        """Require an argument in `without_effect` to be refused or to change nothing."""
        __tracebackhide__ = True
        request = subject.prompt(argument.parts)
        usual = subject.process(*request)
        for value in argument.values[:2]:
            with self.expecting(f"{argument.name}={value!r} is refused with a RequestError, or changes nothing"):
                try:
                    got = subject.process(*request, {argument.name: value})
                except RequestError:
                    continue
            same = [dict(f.data) for f in got.features] == [dict(f.data) for f in usual.features]
            self.require(
                same and got.token_ids == usual.token_ids,
                "call_hf_processor or get_prompt_updates",
                expected=f"{argument.name} has no effect: {self.without_effect[argument.name]}",
                got=f"other tokens or tensors with {argument.name}={value!r}",
                fix="refuse it with ProcessorKwargsError, or take it out of without_effect",
            )

    def _declared(self, kept: bool, expected: str, got: str) -> None:
        """Require something of the contract class."""
        __tracebackhide__ = True
        fix = "set argument_values and without_effect to what is true of the processor's arguments"
        self.require(kept, "the contract class", expected=expected, got=got, fix=fix)


def _is_beyond_plan(error: RequestError, planned: Mapping[str, int]) -> bool:
    """Whether the core refused an item because it has more embeddings than memory was planned for."""
    if not isinstance(error, ProcessorKwargsError):
        return False
    most = planned.get(error.modality or "")
    return most is not None and error.expected == most and bool(error.got > most)


def _two_items(subject: Subject, modality: str) -> list[Part]:
    """Return a prompt with two items, or as many as the model takes."""
    parts: list[Part] = ["What?"]
    for seed in range(subject.several(modality, 2)):
        parts += [(modality, subject.item(modality, 3 + seed)), " "]
    return parts


def _types(contract: type[ArgumentRules], subject: Subject, modality: str) -> list[tuple[str, Any]]:
    """Return `(name, annotation or None)` of the arguments that the processor names, else the adapter or the class.

    The adapter may have left one out: each of the class is tried on the items of every modality. So is an argument of
    the adapter's own, which the class alone names.
    """
    processor = subject.context.hf_processor
    declared = declared_types(processor, modality)
    if declared is None:
        declared = dict.fromkeys({*contract.argument_values, *(kwargs_names(subject.hooks, modality) or ())})
    others = accepted_processor_kwargs(processor) or frozenset()
    declared |= dict.fromkeys(contract.argument_values.keys() - declared.keys() - others)
    return sorted(declared.items())


def _argument(contract: type[ArgumentRules], subject: Subject, modality: str, name: str, kind: Any) -> Argument:
    """Return an argument, tried on the reference: values it fails for, or that change nothing, are left out."""
    part = getattr(subject.context.hf_processor, SUBPROCESSORS[modality], None)
    current = current_value(part, name)
    values = contract.argument_values.get(name) or values_to_try(kind, current)
    two: list[Part] = _two_items(subject, modality)
    large: list[Part] = ["What?", (modality, large_item(subject, modality))]
    parts, outputs = two, list[tuple[Any, Mapping[str, Any]]]()
    if name not in contract.without_effect:
        tried = [*values, *([] if current is None else [current])]
        # items that keep their sizes may not fit into one tensor, and some arguments concern large items only
        for parts in (two, two[:2], large):
            outputs = _outputs(subject, parts, name, tried)
            if len(outputs) == 2:
                break
        spaced = [f"  {value}\n" for value, _ in outputs[:1] if isinstance(value, str)]
        outputs += _outputs(subject, parts, name, spaced, outputs)
    return Argument(name, values, current, parts, outputs)


def _outputs(
    subject: Subject,
    parts: Sequence[Part],
    name: str,
    values: Sequence[Any],
    known: Sequence[tuple[Any, Mapping[str, Any]]] = (),
) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return `(value, the reference's output)` of the first two values that differ in effect, also from `known`."""
    outputs: list[tuple[Any, Mapping[str, Any]]] = []
    for value in values:
        output = reference_output(subject, parts, {name: value})
        if output is not None and not any(same_output(output, other) for _, other in (*known, *outputs)):
            outputs.append((value, output))
        if len(outputs) == 2:
            break
    return outputs
