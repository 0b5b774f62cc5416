"""Classify pictures that are posted as binary PPM files, in several processes: see README.md.

It needs numpy, and the wheel of an exported network; nothing of Farkas.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import net  # the package of the wheel
import numpy as np

(SHAPE,) = (shape for _, shape in net.INPUTS.values())
(SCORES,) = net.OUTPUTS
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
SPREAD = np.array([0.229, 0.224, 0.225], np.float32)
MOST_BYTES = 1 << 26


def image_of(data: bytes) -> np.ndarray:
    """The input for a picture.  Raises `ValueError` if it is not a binary PPM file."""
    words = data.split(maxsplit=3)
    if len(words) < 4 or words[0] != b"P6" or not words[3].startswith(b"255"):
        raise ValueError("it is not a binary PPM file")
    width, height = int(words[1]), int(words[2])
    picture = np.frombuffer(words[3][4:], np.uint8).reshape(height, width, 3)
    side = SHAPE[2]
    rows, columns = (np.arange(side) * n // side for n in picture.shape[:2])
    chosen = picture[rows[:, None], columns].astype(np.float32) / 255
    return np.ascontiguousarray(((chosen - MEAN) / SPREAD).transpose(2, 0, 1)[None])


class Classify(BaseHTTPRequestHandler):
    """Answers a picture with its five best classes."""

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length > MOST_BYTES:
            self.answer(413, {"error": "the picture is too large"})
            return
        try:
            scores = net.run(image_of(self.rfile.read(length)))[SCORES].reshape(-1)
        except (ValueError, IndexError) as error:
            self.answer(400, {"error": str(error)})
            return
        best = np.argsort(-scores)[:5]
        self.answer(200, [{"class": int(n), "score": float(scores[n])} for n in best])

    def answer(self, status: int, content: object) -> None:
        """Send JSON."""
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    server = HTTPServer(("127.0.0.1", given.port), Classify)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    children = []
    for _ in range(given.processes - 1):
        child = os.fork()  # it takes requests from the same socket
        if child == 0:
            children.clear()
            break
        children.append(child)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)


if __name__ == "__main__":
    main()
