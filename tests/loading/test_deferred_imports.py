"""scikit-learn, scipy, sympy, trio and torch's compiler are imported by who uses them, and not by who loads a model."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="comes with librosa")

LOADED = """
import sys
from PIL import Image
from corellm import LLM
with LLM(sys.argv[1], device="cpu") as llm:
    llm.generate("a")
    llm.generate({"prompt": "<image>a", "multi_modal_data": {"image": Image.new("RGB", (40, 30))}})
    assert not {"sklearn", "scipy", "sympy", "trio"} & {name.split(".")[0] for name in sys.modules}
    assert "torch._dynamo.eval_frame" not in sys.modules
    from transformers.utils.import_utils import create_import_structure_from_path as scan
    assert not hasattr(scan, "cache_info") or scan.cache_info().misses == scan.cache_info().currsize > 128
"""
CALLED = """
from transformers.generation import candidate_generator
from transformers.loss import loss_for_object_detection
assert list(loss_for_object_detection.linear_sum_assignment([[2, 1], [1, 2]])[1]) == [1, 0]
roc_curve = getattr(candidate_generator, "roc_curve", None)  # newer releases import it where they call it
assert roc_curve is None or roc_curve([0, 1], [0.2, 0.8])[1][-1] == 1
import scipy.optimize, sklearn.metrics
assert sklearn.metrics.f1_score([1], [1]) == 1
"""
MEANWHILE = """
import sys
class Finder:  # imports the whole module while transformers does
    def find_spec(self, name, path=None, target=None):
        if name == "transformers.loss.loss_for_object_detection":
            from scipy.optimize._zeros_py import brentq
            import scipy.optimize as optimize
            assert optimize.brentq is brentq
sys.meta_path.insert(0, Finder())
from corellm.loading.deferred_imports import import_deferring
import_deferring()
import scipy.optimize
from transformers.loss import loss_for_object_detection
assert scipy.optimize.linear_sum_assignment is loss_for_object_detection.linear_sum_assignment
"""

COMPILED = """
def graphs(function):
    found = []
    def backend(graph, inputs):
        found.append(graph)
        return graph.forward
    assert torch.equal(torch.compile(function, backend=backend)(torch.ones(2)), function(torch.ones(2)))
    return found

@torch.compiler.disable
def left_alone(x):
    return x.sin()

@torch.compiler.allow_in_graph
def one_operation(x):
    return x.cos().sin()

from torch._dynamo import allow_in_graph, disable
held = [sys.modules["torch._dynamo"]]  # not in a module
reason = disable(reason="so", recursive=False)(lambda x: x.tan())
by_name = torch._dynamo.disable(fn=lambda x: x.tan())
assert torch.equal(left_alone(torch.ones(2)), torch.ones(2).sin())
assert "torch._dynamo.eval_frame" not in sys.modules
assert len(graphs(lambda x: left_alone(x + 1) * 2)) == len(graphs(lambda x: by_name(x + 1) * 2)) == 2
assert (reason._torchdynamo_disable_msg, reason._torchdynamo_disable_recursive) == ("so", False)
assert torch._dynamo.is_dynamo_disable_recursive(left_alone)
@allow_in_graph
def later(x):
    return x.cos().tan()
@held[0].allow_in_graph
def later_yet(x):
    return x.tan().cos()
for one in (later, later_yet):
    assert one in [node.target for node in graphs(lambda x: one(x) + 1)[0].graph.nodes]
assert one_operation in [node.target for node in graphs(lambda x: one_operation(x) + 1)[0].graph.nodes]
"""
CALLED_OF_COMPILER = """
import transformers.masking_utils as masks
with masks.TransformGetItemToIndex():
    pass
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
assert masks.TransformGetItemToIndex is TransformGetItemToIndex
"""
PARTS = """
import torch._dynamo.config as config
import torch._dynamo.utils as utils
import torch._dynamo as compiler
assert compiler.config is config is torch._dynamo.config is sys.modules[config.__name__]
assert compiler.utils is utils is torch._dynamo.utils and utils.__spec__.origin == utils.__file__
assert compiler is torch._dynamo and compiler.__spec__.origin == compiler.__file__
for absent in ("import torch._dynamo.absent", "from torch._dynamo import absent"):
    try:
        exec(absent)
    except ImportError:
        continue
    raise AssertionError(absent)
"""
WRONG = """
try:
    torch.compiler.allow_in_graph(3)
except AssertionError:
    assert torch.equal(torch.compile(torch.sin, backend="eager")(torch.ones(2)), torch.ones(2).sin())
else:
    raise AssertionError
"""
PLAIN = """
import torch.fx.experimental.symbolic_shapes as shapes
asked = {
    "expect_true": (True,), "guard_or_false": (False,), "guard_or_true": (True,), "statically_known_true": (False,),
    "guard_size_oblivious": (True,), "guarding_hint_or_throw": (3,), "has_guarding_hint": (3,), "is_nested_int": (3,),
    "sym_and": (True, True, False), "sym_or": (False, True), "sym_eq": ((2, 3), (2, 4)),
}
answers = {name: getattr(shapes, name)(*args) for name, args in asked.items()}
with torch.device("meta"):
    assert (torch.arange(4) / torch.randn(3, 4)).shape == torch.nn.Embedding(3, 4).weight.shape
assert "sympy.core" not in sys.modules
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # imports the module
assert "sympy.core" in sys.modules
real = sys.modules[shapes.__name__]
assert answers == {name: getattr(real, name)(*asked[name]) if hasattr(real, name) else answers[name] for name in asked}
"""
SHARDED = """
from torch.distributed.tensor import DTensor, _collective_utils, _decompositions
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # imports the module
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, guard_or_false
assert _collective_utils.guard_or_false is guard_or_false and not guard_or_false(False)
assert _decompositions.GuardOnDataDependentSymNode is GuardOnDataDependentSymNode
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
mesh = torch.distributed.init_device_mesh("cpu", (1,))
ones = torch.distributed.tensor.distribute_tensor(torch.ones(2, 2), mesh)
assert isinstance(ones, DTensor) and torch.equal((ones @ ones).full_tensor(), torch.full((2, 2), 2.0))
"""
CLIENT = """
if find_spec("trio") is not None:
    (holder,) = [module for name, module in sys.modules.items() if name in CLIENTS]
    import trio
    assert trio.run(trio.sleep, 0) is None  # the stand-in imports it
    assert holder.trio is trio is sys.modules["trio"]
    async def locked():
        async with holder.AsyncLock():
            return 3
    assert holder.trio.run(locked) == 3
"""
FIRST_ABSENT = """
try:
    import torch._dynamo.absent
except ModuleNotFoundError:
    import torch._dynamo.eval_frame
else:
    raise AssertionError
"""
AFTERWARDS = {
    "called": CALLED,
    "client": CLIENT,
    "compiled": COMPILED,
    "called of the compiler": CALLED_OF_COMPILER,
    "parts": PARTS,
    "plain": PLAIN,
    "sharded": SHARDED,
    "wrong": WRONG,
    "first absent": FIRST_ABSENT,
}
FORKING = """
CLIENTS = "httpcore._synchronization", "httpcore2._synchronization"  # of older and newer releases of the hub's client
import os, sys, torch, traceback
from importlib.util import find_spec
from corellm.loading.deferred_imports import deferring, import_deferring
import_deferring()
import transformers.modeling_utils
assert not {"sklearn", "scipy", "sympy"} & {name.split(".")[0] for name in sys.modules}
assert "torch._dynamo" not in sys.modules and find_spec("torch._dynamo").origin
for name, script in SCRIPTS.items():
    if not os.fork():  # imported once for all
        try:
            with deferring():
                exec(script, globals())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.wait()[1]:
        print(f"FAILED: {name}", file=sys.stderr)
        failed = True
assert "failed" not in globals()
"""


@pytest.mark.parametrize(
    "script",
    [LOADED, MEANWHILE, f"SCRIPTS = {AFTERWARDS}\n{FORKING}"],
    ids=["loaded", "meanwhile", "afterwards"],
)
def test_in_a_process(script: str, tiny_llava: Path) -> None:
    """After loading a model; when another thread imports them meanwhile; when they are used or imported afterwards."""
    subprocess.run([sys.executable, "-c", script, str(tiny_llava)], check=True, timeout=600)
