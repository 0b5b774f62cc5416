"""The programs in examples/shipping classify a picture as Farkas does, without Farkas."""

from __future__ import annotations

import functools
import importlib.util
import json
import queue
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import farkas as fk
from docs.tools.blocks import network

SOURCE = Path(__file__).resolve().parent.parent / "examples" / "shipping"
SIDE, CLASSES = 32, 10
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples, with a network of 32 by 32 pixels and ten classes, and a picture."""
    shutil.copytree(SOURCE, tmp_path / "shipping")
    network(tmp_path / "shipping" / "m.onnx", "batch", SIDE)
    picture = np.random.default_rng(2).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    picture[:, :, 0] //= 2
    header = f"P6 {SIDE} {SIDE} 255\n".encode()
    (tmp_path / "shipping" / "cat.ppm").write_bytes(header + picture.tobytes())
    return tmp_path / "shipping"


def classes(folder: Path) -> list[int]:
    """The five best classes of the picture, as Farkas computes them."""
    data = (folder / "cat.ppm").read_bytes()
    picture = np.frombuffer(data, np.uint8)[-SIDE * SIDE * 3 :].reshape(SIDE, SIDE, 3)
    spread = np.array([0.229, 0.224, 0.225], np.float32)
    image = (picture / 255 - [0.485, 0.456, 0.406]) / spread
    x = np.ascontiguousarray(image.transpose(2, 0, 1)[None], dtype=np.float32)
    scores = fk.compile_onnx(folder / "m.onnx").run({"data": x})["scores"][0]
    return [int(n) for n in np.argsort(-scores)[:5]]


def printed(program: Path, *words: str) -> list[int]:
    done = subprocess.run(
        [str(program), *words], cwd=program.parent, capture_output=True, text=True, check=True
    )
    return [int(n) for n in re.findall(r"class (\d+)", done.stdout)]


def exported(folder: Path, to: str, path: str) -> None:
    fk.export_onnx(folder / "m.onnx", folder / path, shapes={"batch": 1}, name="net", to=to)


def test_the_program_in_c(folder: Path) -> None:
    exported(folder, "c", "net.c")
    line = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-DSIDE={SIDE}"]
    line += [f"-DCLASSES={CLASSES}", "classify.c", "net.c", "-lm", "-o", "classify"]
    subprocess.run(line, cwd=folder, check=True)
    assert printed(folder / "classify", "cat.ppm") == classes(folder)
    (folder / "bad.ppm").write_bytes((folder / "cat.ppm").read_bytes()[:100])
    for name, message in (
        ("bad.ppm", "too short"),
        ("m.onnx", "not a binary PPM"),
        ("x", "opened"),
    ):
        done = subprocess.run([folder / "classify", name], cwd=folder, capture_output=True)
        assert done.returncode == 1 and message in done.stderr.decode()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_the_program_in_cpp(folder: Path) -> None:
    exported(folder, "c", "net.c")
    sizes = [f"-DSIDE={SIDE}", f"-DCLASSES={CLASSES}"]
    flags = "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
    subprocess.run(["cmake", "-B", "build", *sizes, flags], cwd=folder, check=True)
    subprocess.run(["cmake", "--build", "build"], cwd=folder, check=True)
    assert printed(folder / "build" / "classify", str(folder / "cat.ppm")) == classes(folder)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of the server, which has two processes."""
    line = [sys.executable, "serve.py", "--port", "0", "--processes", "2"]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def test_the_server(folder: Path) -> None:
    exported(folder, "wheel", ".")
    (wheel,) = folder.glob("net-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    data, want = (folder / "cat.ppm").read_bytes(), classes(folder)
    with served(folder) as address:
        for _ in range(4):
            with urllib.request.urlopen(address, data, timeout=30) as answer:
                assert [x["class"] for x in json.load(answer)] == want
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address, b"P5 1 1 255\nx", timeout=30)
        assert refused.value.code == 400 and b"not a binary PPM" in refused.value.read()


#: Added to the page: it tells the server what it has listed.
TELLS = """
<script type="module">
  const list = document.querySelector("ol");
  const tell = () => list.children.length && fetch("found", {method: "POST", body: list.outerHTML});
  new MutationObserver(tell).observe(list, {childList: true});
  tell();
</script>
"""


class _Told(SimpleHTTPRequestHandler):
    """Serves the page, and keeps what that tells."""

    def __init__(self, *args: Any, found: queue.Queue[str], **options: Any) -> None:
        self.found = found
        super().__init__(*args, **options)

    def do_POST(self) -> None:
        self.found.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@needs_zig
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page(folder: Path) -> None:
    """In a browser; the picture is a PNG file, since browsers do not read PPM."""
    exported(folder, "wasm", "page/net.wasm")
    write_png(folder / "cat.ppm", folder / "page" / "cat.png")
    with (folder / "page" / "index.html").open("a") as page:
        page.write(TELLS)
    found: queue.Queue[str] = queue.Queue()
    handler = functools.partial(_Told, directory=str(folder / "page"), found=found)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--remote-debugging-port=0", f"--user-data-dir={folder / 'profile'}",
    ]  # fmt: skip
    address = f"http://127.0.0.1:{server.server_port}/index.html?image=cat.png"
    browser = subprocess.Popen([str(CHROMIUM), *flags, address], stderr=subprocess.DEVNULL)
    try:
        listed = found.get(timeout=120)
    finally:
        browser.terminate()
        browser.wait(30)
        server.shutdown()
    assert [int(n) for n in re.findall(r"<li>class (\d+)", listed)] == classes(folder)


def write_png(source: Path, path: Path) -> None:
    """A picture of `SIDE` pixels a side as PNG."""
    import struct
    import zlib

    pixels = np.frombuffer(source.read_bytes(), np.uint8)[-SIDE * SIDE * 3 :]
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.reshape(SIDE, SIDE * 3))

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    data = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(data))
