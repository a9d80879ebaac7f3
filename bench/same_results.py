"""What it costs that results do not depend on the batch: products with a fixed order of sums beside torch's.

`corellm` is the packed linear layer, `torch` oneDNN's on weights that are packed, too, which sums as suits the number
of rows. A row's product is compared with that of the row alone: `differ` counts those with other bits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from corellm_kernels.cpu.linear import PackedLinear

Product = Callable[[Tensor], Tensor]


def of_torch(layer: nn.Linear) -> Product:
    """Return a layer's product by oneDNN on packed weights."""
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def seconds(products: dict[str, Product], x: Tensor, rounds: int) -> dict[str, float]:
    """Return the least time of each; they take turns, as the machine may be busier at times."""
    best = dict.fromkeys(products, float("inf"))
    for _ in range(rounds):
        for name, product in products.items():
            began = time.perf_counter()
            product(x)
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def num_different(product: Product, x: Tensor) -> int:
    """Return how many rows have other results beside the others than alone."""
    together = product(x)
    return sum(not torch.equal(product(x[row : row + 1])[0], together[row]) for row in range(len(x)))


@torch.inference_mode()
def main() -> None:
    """Print a row for each type and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2048, help="of the layer (default 2048)")
    parser.add_argument("--outputs", type=int, default=2048, help="of the layer (default 2048)")
    parser.add_argument("--rounds", type=int, default=30, help="of which the best counts (default 30)")
    args = parser.parse_args()
    print(f"{args.inputs} x {args.outputs}, {torch.get_num_threads()} threads")
    print(f"{'':10}{'rows':>5}{'corellm ms':>12}{'torch ms':>10}{'of torch':>10}{'differ':>8}{'of torch':>10}")
    for dtype in (torch.float32, torch.bfloat16):
        layer = nn.Linear(args.inputs, args.outputs, bias=False, dtype=dtype)
        products: dict[str, Product] = {"torch": of_torch(layer), "corellm": PackedLinear(layer)}
        for rows in (1, 2, 8, 32, 128, 512):
            x = torch.randn(rows, args.inputs).to(dtype)
            spent = seconds(products, x, args.rounds)
            own, other = (num_different(products[name], x) for name in ("corellm", "torch"))
            print(
                f"{str(dtype).removeprefix('torch.'):10}{rows:5}{1000 * spent['corellm']:12.3f}"
                f"{1000 * spent['torch']:10.3f}{spent['corellm'] / spent['torch']:10.2f}{own:8}{other:10}"
            )


if __name__ == "__main__":
    main()
