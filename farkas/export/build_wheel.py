"""Exported C as a wheel: a package whose `run` takes and gives numpy arrays."""

from __future__ import annotations

import base64
import hashlib
import io
import keyword
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from codegen.c.module import Module, Parameter
from farkas.export import wheel_face
from farkas.export.build_library import shared_library
from farkas.export.compilers import LibraryCompiler
from farkas.export.elf import oldest_glibc
from farkas.export.exported import Exported
from farkas.version import version as farkas_version
from poly.errors import ArgumentError

#: The version of a wheel that has none of its own.
VERSION = "0.1.0"
_VERSION = re.compile(
    r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)
#: The oldest glibc that tags of platforms name.
_OLDEST = (2, 17)

_INIT = '''\
"""{about}

    run(*arrays, **named) -> dict of numpy arrays

`INPUTS` and `OUTPUTS` have the type and the shape of each.
"""

import os as _os

from ._face import Network as _Network

__version__ = {version!r}
INPUTS = {inputs}
OUTPUTS = {outputs}
_network = _Network(
    _os.path.join(_os.path.dirname(_os.path.abspath(__file__)), {library!r}),
    {name!r},
    {sizes!r},
    INPUTS,
    OUTPUTS,
    {fixed},
    {workspace},
    {memory},
    {has_team},
)
run = _network.run
set_threads = _network.set_threads
'''


def check_package(name: str, version: str) -> None:
    """Check the name of a package and its version.

    Raises
    ------
    ArgumentError : one of them cannot be used.
    """
    if keyword.iskeyword(name) or name.endswith("_") or name in ("numpy", "farkas"):
        raise ArgumentError(f"{name!r} cannot be the name of a package; pass another one as name")
    if not _VERSION.fullmatch(version):
        raise ArgumentError(f"{version!r} is no version of a package, such as {VERSION}")


def wheel(made: Exported, compiler: LibraryCompiler, version: str) -> tuple[str, bytes]:
    """The name of a wheel and its content.

    Raises
    ------
    ArgumentError : it cannot have this name, or version, or threads of OpenMP.
    ToolchainError : the compiler fails.
    """
    check_package(made.name, version)
    if made.module.has_openmp:
        raise ArgumentError("threads of a wheel are 'none' or 'pthread', not 'openmp'")
    library = f"lib{made.name}.so"
    data = shared_library(made, compiler, library, _team_size(made))
    platforms = platform_tags(data, compiler.processor)
    own = re.sub(r"[-_.]+", "_", made.name).lower()
    info = f"{own}-{version}.dist-info"
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in platforms)
    files = {
        f"{made.name}/__init__.py": _init(made, library, version).encode(),
        f"{made.name}/_face.py": Path(wheel_face.__file__).read_bytes(),
        f"{made.name}/{library}": data,
        f"{info}/METADATA": _metadata(made, version).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: farkas {farkas_version()}\n"
            f"Root-Is-Purelib: false\n{tags}"
        ).encode(),
    }
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    return f"{own}-{version}-py3-none-{'.'.join(platforms)}.whl", _zipped(files)


def platform_tags(library: bytes, processor: str) -> tuple[str, ...]:
    """The platforms on which a shared library runs, as names of wheels have them.

    Raises
    ------
    ToolchainError : it is not a 64-bit library of Linux.
    """
    glibc = oldest_glibc(library)
    if glibc is None:
        return (f"linux_{processor}",)
    glibc = max(glibc, _OLDEST)
    found = f"manylinux_{glibc[0]}_{glibc[1]}_{processor}"
    return (f"manylinux2014_{processor}", found) if glibc == _OLDEST else (found,)


def _team_size(made: Exported) -> str:
    """C that says how large a team is, which depends on the platform."""
    if not made.module.has_team:
        return ""
    name = f"{made.name}_team"
    return (
        f'#include "{made.name}.h"\nsize_t {name}_bytes(void);\n'
        f"size_t {name}_bytes(void) {{ return sizeof({name}); }}\n"
    )


def fixed_inputs(made: Exported) -> dict[str, bytes]:
    """The bytes of inputs that always have the same elements."""
    found = {}
    for port in made.module.inputs:
        if port.name in made.module.fixed:
            start = made.module.fixed[port.name]
            end = start + int(port.count) * port.dtype.bytes
            found[port.label] = made.module.weights[start:end]
    return found


def _init(made: Exported, library: str, version: str) -> str:
    module = made.module
    return _INIT.format(
        about=module.about[0],
        version=version,
        sizes=tuple(module.sizes.values()),
        inputs=_table(module, module.inputs),
        outputs=_table(module, module.outputs),
        library=library,
        name=made.name,
        fixed=repr(fixed_inputs(made)),
        workspace=made.workspace,
        memory=module.memory if module.has_team else 0,
        has_team=module.has_team,
    )


def _table(module: Module, ports: Sequence[Parameter]) -> str:
    """The type and the shape of each by name, in Python."""
    lines = [
        f"    {p.label!r}: ({element_type(p)!r}, {shown_shape(module, p)!r}),\n" for p in ports
    ]
    return f"{{\n{''.join(lines)}}}"


def shown_shape(module: Module, port: Parameter) -> tuple[int | str, ...]:
    """A shape as users see it: numbers, names of sizes, and expressions over these."""
    shown = port.described or tuple(map(str, port.shape))
    pairs = zip(port.shape, shown, strict=True)
    return tuple(e if isinstance(e, int) else module.sizes.get(e, text) for e, text in pairs)


def element_type(port: Parameter) -> str:
    """How numpy calls the elements; it has no bfloat16, whose bits are passed."""
    return "uint16" if port.dtype.name == "bfloat16" else port.dtype.numpy.name


def _metadata(made: Exported, version: str) -> str:
    return (
        f"Metadata-Version: 2.1\nName: {made.name}\nVersion: {version}\n"
        f"Summary: {made.module.about[0]}\nRequires-Python: >=3.8\nRequires-Dist: numpy\n"
    )


def _record(files: Mapping[str, bytes], own: str) -> str:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join([*lines, f"{own},,\n"])


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """An archive that does not depend on when it was made."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()
