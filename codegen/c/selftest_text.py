"""A program that runs an exported module once on given inputs, and compares what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from codegen.c.module import Module, Parameter
from codegen.c.module_text import command
from codegen.c.type_names import PATTERNS
from codegen.c.weights_text import ALIGNMENT
from poly.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

#: How far floats may differ, in parts of the largest in their tensor.
TOLERANCE, TOLERANCE_16 = 1e-4, 1e-2
#: For how many seconds runs are timed.
SECONDS = 0.5


def selftest_text(
    module: Module, sizes: Sequence[int], inputs: Sequence[Array], outputs: Sequence[Array]
) -> str:
    """The text of the program; it exits with 0 if all outputs agree.

    sizes, inputs, outputs : in the order of the module's parameters
    """
    lines = [
        f"/* Runs {module.name} on the inputs below, and compares with the outputs below.",
        " *",
        f" *     {command(module)} {module.name}_test.c && cc {module.name}*.o -lm",
        *([f" *     ./a.out {module.name}.bin"] if _reads(module) else [" *     ./a.out"]),
        " */",
        f'#include "{module.name}.h"',
        "",
        *("#include <math.h>", "#include <stdio.h>"),
        *(["#include <stdlib.h>"] if sizes else []),
        *("#include <string.h>", "#include <time.h>"),
        "",
    ]
    for port, array in zip(module.inputs, inputs, strict=True):
        lines += _array(port, _given(port), array)
    for port, array in zip(module.outputs, outputs, strict=True):
        lines += _array(port, _expected(port), array)
        lines.append(f"static {port.kind} {_given(port)}[{max(1, array.size)}];")
    if not sizes:
        own = module.memory if module.has_team else 0
        lines.append(f"static unsigned char workspace[{module.workspace + own or 1}];")
    if _reads(module):
        bytes_ = len(module.weights)
        lines.append(f"static _Alignas({ALIGNMENT}) unsigned char weights[{bytes_}];")
    lines += ["", *_values(module), *_compared(module, outputs), *_main(module, sizes)]
    return "\n".join(lines)


def _given(port: Parameter) -> str:
    """The array that is passed for a parameter, whose name may be that of a function of C."""
    return f"of_{port.name}"


def _expected(port: Parameter) -> str:
    return f"expected_{port.name}"


def _reads(module: Module) -> bool:
    return module.is_separate and bool(module.weights)


def _array(port: Parameter, name: str, array: Array) -> list[str]:
    """The definition of an array with its elements; C has none without any."""
    texts = list(_texts(port.dtype, array)) or ["0"]
    rows = (texts[n : n + 8] for n in range(0, len(texts), 8))
    head = f"static const {port.kind} {name}[{len(texts)}] = {{"
    return [head, *(f"  {', '.join(row)}," for row in rows), "};"]


def _texts(dtype: DType, array: Array) -> Iterator[str]:
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.name in PATTERNS:
        flat = flat.view(np.uint16)
    if flat.dtype.kind != "f":
        ends = {("u", 8): "ULL", ("i", 8): "LL"}
        end = ends.get((flat.dtype.kind, flat.dtype.itemsize), "")
        for value in flat.tolist():
            number = int(value)
            # C has no literal for the least of all.
            yield f"(-{-(number + 1)}LL - 1)" if number == -(2**63) else f"{number}{end}"
        return
    end = "f" if flat.dtype.itemsize == 4 else ""
    for value in flat.tolist():
        if np.isfinite(value):
            yield f"{float(value).hex()}{end}"
        else:
            yield "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"


def _values(module: Module) -> list[str]:
    """Functions that give the value of a 16-bit float from its bits."""
    kinds = {p.dtype.name for p in module.outputs}
    lines = []
    if "bfloat16" in kinds:
        lines += [
            "static double value_bfloat16(uint16_t x)",
            "{ uint32_t bits = (uint32_t)x << 16; float f; memcpy(&f, &bits, 4); return f; }",
        ]
    if "float16" in kinds:
        lines += [
            "static double value_float16(uint16_t x)",
            "{",
            "  int e = x >> 10 & 31, m = x & 1023;",
            "  double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : "
            "ldexp(m, -24);",
            "  return x >> 15 ? -v : v;",
            "}",
        ]
    return lines


def _compared(module: Module, outputs: Sequence[Array]) -> list[str]:
    """A function that compares the outputs."""
    lines = ["static int differs(void)", "{", "  int bad = 0;"]
    for port, array in zip(module.outputs, outputs, strict=True):
        got, want = (_value(port, f"{name}[n]") for name in (_given(port), _expected(port)))
        exact = not port.dtype.is_float
        limit = 0 if exact else TOLERANCE_16 if port.dtype.bits == 16 else TOLERANCE
        lines += [
            "  {",
            "    double difference = 0, scale = 0;",
            f"    for (size_t n = 0; n < {array.size}; n++) {{",
            f"      double a = {got}, b = {want};",
            "      if (a == b || (a != a && b != b)) continue;",
            "      double d = fabs(a - b);",
            "      if (!(d <= difference)) difference = d;",
            "    }",
            f"    for (size_t n = 0; n < {array.size}; n++) {{",
            f"      double b = fabs({want});",
            "      if (b > scale && b <= 1e300) scale = b;",
            "    }",
            f'    printf("{port.name}: difference %g, largest value %g\\n", difference, scale);',
            f"    if (!(difference <= {limit} * scale)) bad = 1;",
            "  }",
        ]
    return [*lines, "  return bad;", "}", ""]


def _value(port: Parameter, element: str) -> str:
    return (
        f"value_{port.dtype.name}({element})"
        if port.dtype.name in PATTERNS
        else f"(double){element}"
    )


def _main(module: Module, sizes: Sequence[int]) -> list[str]:
    given = list(map(str, sizes))
    passed = [*given, *map(_given, (*module.inputs, *module.outputs))]
    passed += ["weights"] if _reads(module) else []
    passed += ["workspace", "bytes" if sizes else "sizeof workspace"]
    passed += ["1" if module.has_openmp else "NULL"] if module.has_team else []
    call = f"{module.name}_run({', '.join(passed)})"
    lines = [f"int main({'int argc, char **argv' if _reads(module) else 'void'})", "{"]
    if _reads(module):
        lines += [
            '  FILE *file = fopen(argc > 1 ? argv[1] : "", "rb");',
            "  if (file == NULL || fread(weights, 1, sizeof weights, file) != sizeof weights) {",
            f'    fprintf(stderr, "the argument has to be {module.name}.bin\\n");',
            "    return 2;",
            "  }",
            "  fclose(file);",
        ]
    if sizes:
        given += ["1"] if module.has_team else []
        lines += [
            f"  size_t bytes = {module.name}_workspace_bytes({', '.join(given)});",
            "  unsigned char *workspace = malloc(bytes + 1);",
        ]
    return [
        *lines,
        f"  int code = {call};",
        f"  if (code != {module.prefix}_OK) {{",
        f'    fprintf(stderr, "%s\\n", {module.name}_error(code));',
        "    return 2;",
        "  }",
        "  int bad = differs();",
        "  long runs = 0;",
        "  clock_t start = clock(), now = start;",
        f"  for (; now - start < {SECONDS} * CLOCKS_PER_SEC; now = clock(), runs++)",
        f"    {call};",
        '  printf("%ld run%s, %.4g ms each\\n", runs, runs == 1 ? "" : "s", '
        "1e3 * (double)(now - start) / CLOCKS_PER_SEC / (double)runs);",
        *(["  free(workspace);"] if sizes else []),
        '  puts(bad ? "FAILED" : "passed");',
        "  return bad;",
        "}",
        "",
    ]
