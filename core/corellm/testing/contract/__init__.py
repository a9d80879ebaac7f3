"""The contract that every adapter keeps, as one test class; a plugin subclasses it in a few lines.

    from corellm.testing import AdapterContract
    from corellm_llava import Llava

    class TestLlava(AdapterContract):
        adapter = Llava

Shipped in the plugin as `contract.py`, it runs wherever the plugin is installed, offline, on its tiny checkpoint:
`pytest --pyargs corellm_llava.contract`. The rules are in this package's other files, by subject; the cheap ones run
first.
"""

from corellm.testing.contract.arguments import ArgumentRules
from corellm.testing.contract.chat_prompts import ChatPromptRules
from corellm.testing.contract.conversations import ConversationRules, TurnRules
from corellm.testing.contract.embeddings import EmbeddingRules
from corellm.testing.contract.encoded_arguments import EncodedArgumentRules
from corellm.testing.contract.engine import EngineRules, ItemEngineRules
from corellm.testing.contract.files import FileRules
from corellm.testing.contract.identity import IdentityRules
from corellm.testing.contract.independence import IndependenceRules
from corellm.testing.contract.lengths import LengthRules
from corellm.testing.contract.limits import LimitRules
from corellm.testing.contract.media import MediaRules
from corellm.testing.contract.packaging import PackagingRules
from corellm.testing.contract.pairs import PairRules
from corellm.testing.contract.perception import PerceptionRules
from corellm.testing.contract.placeholders import PlaceholderRules
from corellm.testing.contract.planned_sizes import PlannedSizeRules
from corellm.testing.contract.repetition import RepetitionRules
from corellm.testing.contract.surroundings import SurroundingsRules
from corellm.testing.contract.text_outputs import TextOutputRules
from corellm.testing.contract.timing import TimingRules
from corellm.testing.contract.variants import VariantRules
from corellm.testing.contract.visibility import VisibilityRules
from corellm.testing.contract.weights import WeightRules
from corellm.testing.contract.worst_case import WorstCaseRules

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
