"""The contract that every adapter keeps, as one test class; a plugin subclasses it in a few lines.

    from corellm_testing import AdapterContract
    from corellm_llava import Llava

    class TestLlava(AdapterContract):
        adapter = Llava

Shipped in the plugin as `contract.py`, it runs wherever the plugin is installed, offline, on its tiny checkpoint:
`pytest --pyargs corellm_llava.contract`. The rules are in this package's other files, by subject; the cheap ones run
first.
"""

from corellm_testing.contract.arguments import ArgumentRules
from corellm_testing.contract.chat_prompts import ChatPromptRules
from corellm_testing.contract.conversations import ConversationRules, TurnRules
from corellm_testing.contract.embeddings import EmbeddingRules
from corellm_testing.contract.encoded_arguments import EncodedArgumentRules
from corellm_testing.contract.engine import EngineRules, ItemEngineRules
from corellm_testing.contract.files import FileRules
from corellm_testing.contract.identity import IdentityRules
from corellm_testing.contract.independence import IndependenceRules
from corellm_testing.contract.lengths import LengthRules
from corellm_testing.contract.limits import LimitRules
from corellm_testing.contract.media import MediaRules
from corellm_testing.contract.packaging import PackagingRules
from corellm_testing.contract.pairs import PairRules
from corellm_testing.contract.perception import PerceptionRules
from corellm_testing.contract.placeholders import PlaceholderRules
from corellm_testing.contract.planned_sizes import PlannedSizeRules
from corellm_testing.contract.repetition import RepetitionRules
from corellm_testing.contract.surroundings import SurroundingsRules
from corellm_testing.contract.text_outputs import TextOutputRules
from corellm_testing.contract.timing import TimingRules
from corellm_testing.contract.transcriptions import TranscriptionRules
from corellm_testing.contract.variants import VariantRules
from corellm_testing.contract.visibility import VisibilityRules
from corellm_testing.contract.weights import WeightRules
from corellm_testing.contract.worst_case import WorstCaseRules

__all__ = ["AdapterContract", "TextContract"]


class TextContract(
    EngineRules, ChatPromptRules, TurnRules, TextOutputRules, WeightRules, RepetitionRules, PackagingRules
):
    """The rules for an adapter that takes no items: `supported_mm_limits = {}`."""


class AdapterContract(
    ItemEngineRules,
    VariantRules,
    FileRules,
    IdentityRules,
    EmbeddingRules,
    PairRules,
    PerceptionRules,
    LengthRules,
    TimingRules,
    TranscriptionRules,
    MediaRules,
    ChatPromptRules,
    ConversationRules,
    PlaceholderRules,
    VisibilityRules,
    EncodedArgumentRules,
    PlannedSizeRules,
    WorstCaseRules,
    LimitRules,
    SurroundingsRules,
    IndependenceRules,
    TextOutputRules,
    ArgumentRules,
    WeightRules,
    RepetitionRules,
    PackagingRules,
):
    """Every rule. A subclass sets `adapter`; `ContractRules` has the other attributes it may set."""
