"""Run by ``test_files``: fingerprint all files of a folder in a process that cannot take the machine's memory.

Writes one JSON object to stdout: for each file what every way to hand it over gave, a fingerprint or an error, and
what Pillow alone says to the same.
"""

import io
import json
import os
import re
import resource
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image, ImageOps

from mmcache.fingerprints import fingerprint

LIMIT_BYTES = 4 << 30


def outcome(call: Callable[[], object]) -> str:
    """What a call gives, or its error with addresses left out."""
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001 - every error is a finding here
        return re.sub(r"0x[0-9a-f]+", "0x", f"{type(error).__name__}: {error}")


def load_plainly(source: "Path | io.BytesIO") -> str:
    with Image.open(source) as image:
        ImageOps.exif_transpose(image).convert("RGB")
    return "decodes"


def open_and_load(path: Path) -> str:
    with Image.open(path) as image:
        image.load()
    return "decodes"


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def opened_twice(path: Path) -> list[str]:
    """The fingerprint of one opened image, asked for twice."""
    try:
        image = Image.open(path)
    except Exception as error:  # noqa: BLE001 - see outcome
        return [outcome(lambda: Image.open(path)), f"open: {type(error).__name__}"]
    with image:
        return [outcome(lambda: fingerprint(image)), outcome(lambda: fingerprint(image))]


def read(path: Path) -> dict[str, object]:
    data = path.read_bytes()
    before = open_files()
    return {
        "path": outcome(lambda: fingerprint(path)),
        "str": outcome(lambda: fingerprint(str(path))),
        "bytes": outcome(lambda: fingerprint(data)),
        "BytesIO": outcome(lambda: fingerprint(io.BytesIO(data))),
        "left open": open_files() - before,
        "image": opened_twice(path),
        "plain path": outcome(lambda: load_plainly(path)),
        "plain bytes": outcome(lambda: load_plainly(io.BytesIO(data))),
        "plain image": outcome(lambda: open_and_load(path)),
    }


def main() -> None:
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    files = sorted(folder.iterdir())
    if threads == 1:
        results = [read(file) for file in files]
    else:
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(read, files))
    json.dump({file.name: result for file, result in zip(files, results, strict=True)}, sys.stdout)


if __name__ == "__main__":
    main()
