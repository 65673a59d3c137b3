"""Compile the GPU kernels for cards that need not be there; print what each one takes as JSON.

Run with TRITON_INTERPRET=0 in a process of its own: `test_compiled_kernels.py` does.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernelcg.backends.triton import kernels
from kernelcg.backends.triton.forms import CORRELATION_SHIFT, NORMS, in_chunks, power_of_two
from kernelcg.backends.triton.shapes import shape_for

FLOATS = {torch.float32: "*fp32", torch.float64: "*fp64"}
WHOLE = ("rows", "columns", "first_row", "span")  # multiples of 16

CASES = [
    ("product", torch.float32, 0, 9, 1, True),
    ("product", torch.float32, 2, 9, 16, True),
    ("product", torch.float32, 3, 60, 128, True),
    ("product", torch.float32, 2, 508, 16, True),
    ("product", torch.float32, 1, 9, 1, False),
    ("product", torch.float32, 1, 60, 128, False),
    ("product", torch.float64, 2, 9, 1, False),
    ("product", torch.float64, 3, 9, 32, False),
    ("moments", torch.float32, 2, 9, 16, True),
    ("moments", torch.float32, 3, 60, 128, True),
    ("gradient", torch.float32, 1, 9, 16, False),
    ("gradient", torch.float64, 2, 9, 16, False),
    ("gradient with weights", torch.float64, 3, 60, 16, False),
    ("block", torch.float64, 2, 9, 1, False),
]


def compiled(shape, capability):
    """Return the compiled kernel of a shape for a compute capability of NVIDIA cards."""
    numbers, wide = FLOATS[shape.dtype], shape.dtype == torch.float64
    D = power_of_two(shape.features + NORMS, 16) if shape.fixed else shape.features
    rows, columns = "*fp16" if shape.fixed else numbers, numbers if wide or shape.columns == 1 else "*fp16"
    pointers = {"A": rows, "B": rows, "V": columns, "out": numbers, "values_out": numbers, "powers": "*fp16"}
    pointers |= {"left": columns, "right": columns, "variance": numbers, "weights": "*fp64", "weights_factor": "*fp64"}
    _, used = in_chunks(shape.features)
    constants = {
        "D": D,
        "STEP": min(D, 64),
        "T": shape.columns,
        "P": power_of_two(2 * shape.features + 1, 16),
        "CHUNK": power_of_two(used, 1),
        "USED": used,
        "SCALE": 2.0**CORRELATION_SHIFT if shape.columns > 1 and not wide else 1.0,
        "BM": shape.tile.rows,
        "BN": shape.tile.columns,
        "PROFILE": shape.profile,
        "FIXED": shape.fixed,
        "F64": wide,
        "WEIGHTED": shape.work.endswith("weights"),
    }
    function = getattr(kernels, shape.work.split()[0])
    names = function.arg_names
    kinds = {name: pointers.get(name, "fp32" if name in ("unit", "pair_unit") else "i32") for name in names}
    signature = {name: "constexpr" if name in constants else kinds[name] for name in names}
    known = {(names.index(name),): value for name, value in constants.items() if name in names}
    aligned = [n for n, name in enumerate(names) if signature[name].startswith("*") or name in WHOLE]
    attributes = {(n,): [["tt.divisibility", 16]] for n in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=known, attrs=attributes)
    options = {"num_warps": shape.tile.warps, "num_stages": shape.tile.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def stack_bytes(kernel):
    """Return the bytes of numbers that did not fit the registers, as the disassembler in Triton's package says."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", said).group(1))


if __name__ == "__main__":
    for capability in map(int, sys.argv[1:]):
        for *case, fixed in CASES:
            shape = shape_for(*case, fixed=fixed)
            kernel = compiled(shape, capability)
            taken = {"shared": kernel.metadata.shared, "stack": stack_bytes(kernel)}
            print(json.dumps({"capability": capability, "shape": str(shape), **taken}))
