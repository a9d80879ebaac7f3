"""How a model's outputs are read: which parsers it has, and whether they need special tokens in the text.

Knows the operator's choice, the adapter's and the chat template, and what a request demands; knows no response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from corellm import ReasoningParams, StructuredOutputsParams
from corellm.errors import InvalidParameterError
from corellm.sampling_params import ConstraintParams, SamplingParams
from corellm.serving import InputProcessor
from corellm.structured_outputs import STRUCTURED
from corellm_server.errors import ApiError
from corellm_server.options import ServerOptions
from corellm_server.parsing.names import REASONING, TOOLS, Parsers
from corellm_server.parsing.output import LeftOut, OutputChain
from corellm_server.parsing.reader import GeneratorParser, OutputParser
from corellm_server.reasoning.marked import ReasoningParser
from corellm_server.requests.tools import NO_DEMAND, Demand
from corellm_server.tools.calls import ToolParser
from corellm_server.tools.held import calls_alone, calls_in_text
from corellm_server.tools.objects import HermesCalls


@dataclass(frozen=True)
class OutputForm:
    """How the outputs of one request are read."""

    tools: Sequence[Mapping[str, Any]] = ()
    """Tools that the model may call."""
    tool_parser: type[ToolParser] | None = None
    reasoning_parser: type[ReasoningParser] | None = None
    prompt: str = ""
    """The end of the prompt, which the outputs go on with."""
    special: tuple[str, ...] = ()
    """Special tokens that are left out of the text, where a marker is one: all but the markers."""
    end_of_reasoning: int | None = None
    """The token that ends reasoning, if it is one."""
    keeps_special: bool = False
    """Whether special tokens must come as text."""
    held: StructuredOutputsParams | None = None
    """What outputs are held to, so that calls come, or keep to their schemas."""
    reasoning: ReasoningParams | None = None
    """The reasoning that comes before what outputs are held to; None if there is none."""

    def params(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters with which markers are in the text, and outputs may begin with reasoning."""
        if self.reasoning is not None and (params.constraint is not None or self.reasoning.max_tokens is not None):
            form = None if params.constraint is None else params.constraint.definition
            params = replace(params, constraint=ConstraintParams(STRUCTURED, self.reasoning.before(form)))
        return replace(params, skip_special_tokens=False) if self.keeps_special else params

    def holding(self, params: SamplingParams) -> SamplingParams:
        """Sampling parameters with which outputs are held to what calls need, a form of the client's included."""
        return params if self.held is None else replace(params, structured_outputs=self.held)

    def after(
        self,
        prompt: str | None,
        params: SamplingParams,
        *,
        is_begun: bool = False,
        thinks: bool | None = None,
        budget: int | None = None,
    ) -> OutputForm:
        """The form of what goes on with a prompt.

        An output that is held to a form of the client's, or to calls alone, has it behind the reasoning; from its first
        character on if there is none: the prompt has closed it or is within the answer, or the client wants none.

        Args:
            prompt: its text; None where there are only tokens.
            params: the client's: who wants special tokens gets them all.
            is_begun: whether it ends within the assistant's message.
            thinks: whether the client wants reasoning; None if it does not say.
            budget: most tokens of reasoning; None for no bound.
        """
        form, parser = self, self.reasoning_parser
        if params.constraint is not None and self.held is None:
            if parser is None:
                return OutputForm()
            form = replace(self, tools=(), tool_parser=None)
        special = self.special if params.skip_special_tokens else ()
        prompt = prompt or ""
        reasoning = None
        if parser is not None:
            prompt = parser.last_marker(prompt) if is_begun else prompt
            found = parser(prompt)
            if found.begins_inside or not (found.is_closed or thinks is False):
                stated = {"start": parser.OPEN, "end": parser.CLOSE}
                reasoning = ReasoningParams(**stated, is_begun=found.begins_inside, max_tokens=budget)
        return replace(form, prompt=prompt[-256:], special=special, reasoning=reasoning)

    def parser(self) -> OutputParser | None:
        """A parser for one output; None if all of it is text."""
        parsers: list[OutputParser] = [LeftOut(self.special)] if self.special else []
        if self.reasoning_parser is not None:
            parsers.append(self.reasoning_parser(self.prompt))
        if self.tool_parser is not None:
            parsers.append(self.tool_parser(self.tools))
        return OutputChain(parsers) if parsers else None


class OutputForms:
    """The forms of one model's outputs.

    Args:
        processor: the model's.
        options: of the server.

    Raises:
        ConfigError: the operator chose a parser that does not exist.
        ContractError: the adapter states one, or an extension's is none.
    """

    def __init__(self, processor: InputProcessor, options: ServerOptions) -> None:
        self._processor = processor
        stated = processor.parsers
        self._tool_parsers = Parsers(TOOLS, options.tool_call_parser, stated.get("tool_parser"))
        self._reasoning_parsers = Parsers(REASONING, options.reasoning_parser, stated.get("reasoning_parser"))

    @cached_property
    def can_bound_reasoning(self) -> bool:
        """Whether what holds outputs to a form, and reasoning to a bound, is installed."""
        bound = ReasoningParams(start="(", end=")", max_tokens=0).before(None)
        try:
            self._processor.check_params(SamplingParams(constraint=ConstraintParams(STRUCTURED, bound)))
        except InvalidParameterError:
            return False
        return True

    def of(
        self,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        *,
        demand: Demand = NO_DEMAND,
        strict: str | None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> OutputForm:
        """The form of a conversation's completions.

        Args:
            tools: that the model may call.
            template: the request's own chat template; None for the model's.
            demand: the tools of which one must be called, also where the template does not tell the model of them.
            strict: the field by which calls must keep to their schemas; None if there is none.
            schema: of an output that is no call; None where that is free.

        Raises:
            ApiError: the model cannot be given tools, or its calls cannot be held to their schemas.
        """
        template = template or self._processor.chat_template
        reasoning = self._reasoning_parsers.of(template)
        if demand.tools:
            parser = self._tool_parsers.of(template)
            parser = HermesCalls if parser is None or parser.WRITTEN is None else parser
            special = self._special_in(parser)
            held = calls_alone(parser, demand.tools, one_call=demand.one_call, special=special)
            return self._read(tools, parser, reasoning, held)
        if not tools:
            return self._read(tools, None, reasoning, None)
        parser = self._tool_parser(template)
        if schema is not None:
            parser = HermesCalls if parser.WRITTEN is None else parser
            special = self._special_in(parser)
            held = calls_alone(parser, tools, one_call=demand.one_call, or_schema=schema, special=special)
            return self._read(tools, parser, reasoning, held)
        if strict is None:
            return self._read(tools, parser, reasoning, None)
        parser = self._strict_parser(parser, strict)
        held = calls_in_text(parser, tools, [*self._special_in(parser), *self._special_in(reasoning)])
        return self._read(tools, parser, reasoning, held)

    def _read(
        self,
        tools: Sequence[Mapping[str, Any]],
        parser: type[ToolParser] | None,
        reasoning: type[ReasoningParser] | None,
        held: StructuredOutputsParams | None,
    ) -> OutputForm:
        """How outputs are read with these parsers."""
        kept = {*self._special_in(reasoning), *self._special_in(parser)}
        close = None if reasoning is None else self._added.get(reasoning.CLOSE)
        special = tuple(sorted(self._special - kept)) if kept else ()
        return OutputForm(tools, parser, reasoning, "", special, close, bool(kept), held)

    @staticmethod
    def _strict_parser(parser: type[ToolParser], strict: str) -> type[ToolParser]:
        """A parser whose calls among text can be held to their schemas: the family's, or another of the same marker.

        Raises:
            ApiError: there is none.
        """
        if parser.WRITTEN is None and parser.MARKERS[0] == HermesCalls.MARKERS[0]:
            parser = HermesCalls
        if parser.WRITTEN is None:
            told = "this model's form of calls cannot be held to a schema among text; demand a call, or leave it out"
            raise ApiError(400, f"{strict}: {told}", param=strict, code="unsupported_parameter")
        return parser

    def _special_in(self, parser: type[GeneratorParser] | None) -> list[str]:
        """The strings of a form that are special tokens: its markers, and others that calls are written with."""
        if parser is None:
            return []
        written = "".join(parser.WRITTEN or ()) if issubclass(parser, ToolParser) else ""
        return sorted(one for one in self._special if one in parser.MARKERS or one in written)

    def _tool_parser(self, template: str | None) -> type[ToolParser]:
        """The parser of tool calls.

        Raises:
            ApiError: there is none, or the template does not show tools to the model.
        """
        parser = self._tool_parsers.of(template)
        if template is not None and "tools" not in template and "tool_parser" not in self._processor.parsers:
            told = "tools: this model's chat template does not take tools, so that the model would not know of them"
            instead = "describe them in a message, or demand a call with tool_choice"
            raise ApiError(400, f"{told}; {instead}", param="tools", code="unsupported_parameter")
        if parser is None:
            raise ApiError(
                400,
                "tools: it is not known in which form this model writes calls; start the server with "
                f"--tool-call-parser and one of {', '.join(self._tool_parsers.names)}",
                param="tools",
                code="unsupported_parameter",
            )
        return parser

    @cached_property
    def _special(self) -> frozenset[str]:
        """The model's special tokens."""
        tokenizer = self._processor.tokenizer
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        return frozenset(filter(None, {*special, *tokenizer.all_special_tokens}))

    @cached_property
    def _added(self) -> Mapping[str, int]:
        added: Mapping[str, int] = self._processor.tokenizer.get_added_vocab()
        return added
