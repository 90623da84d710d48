"""``mmcache fingerprint``: the fingerprints of picture files, one a line, like ``sha256sum`` for what is in them."""

import argparse
import sys

import mmcache


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a picture; equal pictures have equal fingerprints")


def run(arguments: argparse.Namespace) -> int:
    """Print ``sha256:<hex>  FILE`` for each file that decodes; return 1 if one of them does not, else 0."""
    return max([_print_fingerprint(file) for file in arguments.files])


def _print_fingerprint(file: str) -> int:
    try:
        with open(file, "rb"):  # what is no file is told in the system's words
            found = mmcache.fingerprint(file)
    except Exception as error:  # noqa: BLE001 - decoders raise what they like; it is said, and the next file goes on
        print(f"mmcache fingerprint: {_shown(file)}: {_told(error)}", file=sys.stderr)
        return 1
    print(f"{found}  {_shown(file)}")
    return 0


def _shown(file: str) -> str:
    """Return a file's name on one line: names may hold newlines, and bytes that are no text."""
    return file if file.isprintable() else ascii(file)


def _told(error: Exception) -> str:
    """Return an error's text on one line; the system's without its number and the file's name, which are said."""
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
