"""Arguments that several commands take; argparse reports what is wrong with them as usage."""

import argparse
from pathlib import Path


def folder(given: str) -> Path:
    """Return a folder that exists."""
    if not Path(given).is_dir():
        raise argparse.ArgumentTypeError(f"{given!r} is no folder")
    return Path(given)


def count(given: str) -> int:
    """Return a whole number above 0."""
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"{given!r} is no number above 0")
    return int(given)
