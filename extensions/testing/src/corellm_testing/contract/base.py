"""The base of contract classes: what an author says of an adapter, and the fixtures that load it."""

from __future__ import annotations

import copy
import importlib
import inspect
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings

from corellm.errors import RequestError
from corellm.frontend.input_processor import InputProcessor
from corellm.loading.deferred_imports import import_deferring
from corellm.modelling.defaults import no_progress_bars
from corellm.multimodal.chat.fields import ROLES
from corellm.multimodal.defaults import accepted_processor_kwargs
from corellm.multimodal.inputs import MultiModalFeature
from corellm.plugin.adapters import FALLBACKS_GROUP, MODELS_GROUP
from corellm_testing.counting import miscounting_hook
from corellm_testing.reference import Reference
from corellm_testing.rules import Rules
from corellm_testing.subject import Subject
from corellm_testing.surroundings import changed
from corellm_testing.surroundings import settings as process_settings

USUAL_KWARGS: Sequence[Mapping[str, Any]] = (
    {"do_normalize": False},
    {"do_rescale": False},
    {"image_mean": [0.1, 0.2, 0.3]},
)
"""Arguments that most image processors take."""

FEW = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""The same examples in every run: a rule passes or fails the same everywhere."""


class ContractRules(Rules):
    """The class attributes by which an author describes an adapter. Only `adapter` is required."""

    adapter: ClassVar[type[Any]]
    """The class that the entry point names."""
    architecture: ClassVar[str | None] = None
    """The architecture to test, where entry points give the adapter several."""
    reference: ClassVar[type[Reference]] = Reference
    """The oracle; a subclass where transformers' own processor or model cannot be used."""
    processor_kwargs: ClassVar[Sequence[Mapping[str, Any]]] = ()
    """Examples of a request's `mm_processor_kwargs` that change an item's tensors. By default the ones in
    `USUAL_KWARGS` that the processor takes."""
    own_items: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """`{modality: items in a form that only the adapter's parser reads, no two the same}`, such as one image with
    different instructions."""
    argument_values: ClassVar[Mapping[str, Sequence[Any]]] = {}
    """`{argument of the processor: values to try}`, where they cannot be derived from its type and the checkpoint."""
    without_effect: ClassVar[Mapping[str, str]] = {}
    """`{argument of the processor: why it is refused, or changes nothing, where the processor's output changes}`."""
    chat_prompts: ClassVar[tuple[str, str] | None] = None
    """Prompts without a chat template, in the form that the family's authors publish: of the rules' example, a
    conversation that the failing rule shows, and of its last message alone. Required where the adapter has a form of
    its own, or the checkpoint no template."""
    same_roles: ClassVar[Sequence[Collection[str]]] = (("system", "developer"),)
    """Roles that a prompt without a chat template does not tell apart, in groups, where the adapter has a form of its
    own."""
    cut_by: ClassVar[Mapping[str, Mapping[str, Any] | None]] = {}
    """`{"audio": mm_processor_kwargs that cut what is longer than the processor takes}`, `{}` where it always
    is, None where it never is. Without these arguments it is refused. Where nothing is said, either will do."""

    @classmethod
    def _check(cls) -> None:
        """Refuse what `Rules` refuses, and attributes of the wrong form.

        Raises:
            TypeError: names the attribute.
        """
        super()._check()
        cls._require_reasons("without_effect", "the argument has no effect")
        prompts: object = cls.chat_prompts
        if prompts is not None and not (isinstance(prompts, tuple) and [type(one) for one in prompts] == [str, str]):
            raise TypeError(
                f"{cls.__name__}.chat_prompts must be two texts, the prompts of a conversation and of its last message "
                f"alone; got {prompts!r:.100}"
            )
        if not all(not isinstance(roles, str) and set(roles) <= set(ROLES) for roles in cls.same_roles):
            raise TypeError(
                f"{cls.__name__}.same_roles must be groups of the roles {', '.join(ROLES)}; got {cls.same_roles!r:.100}"
            )

    @classmethod
    def architectures(cls) -> list[str]:
        """Return the architectures that the entry points give the adapter; only `architecture` where it is set."""
        claimed = {entry.name for entry in entry_points(group=MODELS_GROUP) if _names(entry.value, cls.adapter)}
        ends = [entry.name for entry in entry_points(group=FALLBACKS_GROUP) if _names(entry.value, cls.adapter)]
        if cls.architecture is not None and cls.architecture.endswith(tuple(ends)):
            claimed.add(cls.architecture)
        return sorted(name for name in claimed if cls.architecture in (None, name))

    @classmethod
    def make_checkpoint(cls, path: Path, seed: int = 0, **settings: Any) -> Path:
        """Write a tiny checkpoint: by default `make_tiny_checkpoint` of the module `tiny` beside the adapter's.

        Its parameter `architecture`, where it has one, gets the class attribute's value; `settings` are those of a
        variant.
        """
        make = tiny_module(cls.adapter).make_tiny_checkpoint
        chosen = {"architecture": cls.architecture} if cls.architecture is not None else {}
        takes = inspect.signature(make).parameters
        made: Path = make(path, seed, **{name: value for name, value in chosen.items() if name in takes}, **settings)
        return Path(made)

    @classmethod
    def variants(cls) -> Mapping[str, Mapping[str, Any]]:
        """Return `{what is different: arguments of make_checkpoint}`: `VARIANTS` of the module `tiny`, or nothing."""
        return cls._of_tiny("VARIANTS")

    @classmethod
    def refused_checkpoints(cls) -> Mapping[str, Mapping[str, Any]]:
        """Return `{what cannot be served: arguments of make_checkpoint}`: `REFUSED` of the module `tiny`."""
        return cls._of_tiny("REFUSED")

    @classmethod
    def long_settings(cls) -> Mapping[str, Any]:
        """Return arguments of `make_checkpoint` for longer items: `LONG` of the module `tiny`, or nothing."""
        return cls._of_tiny("LONG")

    @classmethod
    def _of_tiny(cls, name: str) -> Mapping[str, Any]:
        """Return a table of the module `tiny` beside the adapter's; an empty one where it has none."""
        try:
            tiny = tiny_module(cls.adapter)
        except ModuleNotFoundError as error:
            if error.name is not None:  # raised by an import of the module's
                raise
            return {}
        found: Mapping[str, Any] = getattr(tiny, name, {})
        return found

    def arguments(self, subject: Subject) -> list[Mapping[str, Any]]:
        """Return the processor arguments to try: the author's, else the usual ones that are accepted."""
        return copy.deepcopy(list(self.processor_kwargs)) or self._usual_arguments(subject)

    def every_argument(self, subject: Subject) -> list[Mapping[str, Any]]:
        """Return no arguments, the author's, and the usual ones that the processor takes, if not the adapter."""
        known: list[Mapping[str, Any]] = [{}, *copy.deepcopy(self.processor_kwargs)]
        return known + [kwargs for kwargs in self._usual_arguments(subject) if kwargs not in known]

    def _usual_arguments(self, subject: Subject) -> list[Mapping[str, Any]]:
        accepted = accepted_processor_kwargs(subject.context.hf_processor) or frozenset()
        return [copy.deepcopy(kwargs) for kwargs in USUAL_KWARGS if set(kwargs) <= accepted]

    def taken(
        self,
        subject: Subject,
        modality: str,
        item: Any,
        what: str,
        kwargs: Mapping[str, Any] | None = None,
        *,
        inputs: InputProcessor | None = None,
    ) -> list[MultiModalFeature]:
        """Return an item processed, as a list of one, or an empty list where it is refused with a `RequestError`.

        Args:
            subject: the model.
            modality: the item's.
            item: of any size and form.
            what: describes the item in the message of another error.
            kwargs: the request's `mm_processor_kwargs`.
            inputs: of `Subject.fresh` or `Subject.opened`, instead of the engine's own.
        """
        __tracebackhide__ = True
        fix = "refuse what cannot be processed with a MediaError that says why"
        with self.expecting(f"{what} is taken, or refused with a RequestError", hook="call_hf_processor", fix=fix):
            try:
                return subject.process(*subject.prompt(["What?", (modality, item)]), kwargs, inputs=inputs).features
            except RequestError:
                return []

    def fits_placeholder(self, subject: Subject, features: Sequence[MultiModalFeature], what: str) -> None:
        """Require the encoder to return as many embeddings for each item as its placeholder takes, of one width."""
        __tracebackhide__ = True
        width = subject.embedding_width if features else 0
        want = [(feature.placeholder.num_embeds, width) for feature in features]
        with self.expecting(f"{what} is embedded", hook="get_multimodal_embeddings"):
            got = [tuple(embeddings.shape) for feature in features for embeddings in subject.embed([feature])]
        if got != want:
            hook, fix = miscounting_hook(subject, features[0].modality)
            self.fail(hook, expected=f"for {what}: embeddings of shapes {want}", got=got, fix=fix)

    @pytest.fixture(scope="class")
    @classmethod
    def settings_before(cls) -> Mapping[str, Any]:
        """The process's settings before anything of the adapter is called."""
        import_deferring()  # before `tiny` imports the model: a second less
        return process_settings()

    @pytest.fixture(scope="class")
    @classmethod
    def checkpoint(cls, settings_before: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A tiny checkpoint; rules do not write to it."""
        with no_progress_bars():
            return cls.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))

    @pytest.fixture(scope="class")
    @classmethod
    def written(cls, checkpoint: Path) -> Mapping[str, bytes]:
        """The checkpoint's files as they were made, before anything is loaded from them."""
        return files_of(checkpoint)

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, checkpoint: Path, written: Mapping[str, bytes]) -> Iterator[Subject | Exception]:
        """The loaded model, or the error of loading it."""
        try:
            subject = Subject(checkpoint, cls.reference(checkpoint))
        except Exception as error:  # test_it_loads reports it in full, every other rule in a line
            yield error
            return
        yield subject
        subject.close()

    @pytest.fixture(scope="class")
    @classmethod
    def changed_by_loading(cls, settings_before: Mapping[str, Any], loaded: Subject | Exception) -> Sequence[str]:
        """The process's settings that making the tiny checkpoint and loading the model changed, by name."""
        return changed(settings_before, process_settings())

    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, loaded: Subject | Exception, changed_by_loading: Sequence[str]) -> Subject:
        """The loaded model; what loading changed is known before a rule changes anything."""
        if isinstance(loaded, Exception):
            pytest.fail(f"not tested: the model does not load (test_it_loads): {loaded}", pytrace=False)
        return loaded


def files_of(path: Path) -> Mapping[str, bytes]:
    """Return the contents of a directory's files by name."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def _names(value: str, adapter: type[Any]) -> bool:
    """Whether an entry point's value names `adapter`; imports no other package."""
    module, _, name = value.partition(":")
    if module.partition(".")[0] != adapter.__module__.partition(".")[0]:
        return False
    return getattr(importlib.import_module(module), name, None) is adapter


def tiny_module(adapter: type[Any]) -> Any:
    """Return the module `tiny` nearest to an adapter's: in its package or in an enclosing one.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    packages = list(itertools.accumulate(adapter.__module__.split("."), "{}.{}".format))
    for package in reversed(packages):
        name = f"{package}.tiny"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, package):
                raise
    raise ModuleNotFoundError(
        f"{adapter.__module__} has no module 'tiny' beside it with make_tiny_checkpoint(path, seed); write one, or "
        f"implement make_checkpoint in the contract class"
    )
