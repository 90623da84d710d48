"""The command ``mmcache``: one file per command, loaded when it is used.

A command is a module with ``add_arguments(parser)`` and ``run(arguments) -> int``. Exit statuses: 0 it went well,
1 what was asked for failed, 2 it was asked for in a way that is not understood.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

import mmcache
from mmcache.errors import MMCacheError

__all__ = ["main"]


class _Command(Protocol):
    """What the module of a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


_COMMANDS = {
    "bench": "measure what mmcache costs and saves on this machine, in ratios",
    "demo": "process photographs twice per request, plain and with mmcache, and compare times and bits",
    "fingerprint": "print the fingerprints of picture files",
    "info": "show versions, limits and settings, as mmcache finds them here",
    "verify": "compare a processor with itself behind the cache, bit for bit, on random batches",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    ``argv`` are the arguments after the program's name; None takes them from ``sys.argv``. Nothing is raised for wrong
    arguments or for what fails with an `MMCacheError` or ``OSError``: it is one line on stderr and the status.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser(given).parse_args(given)
    except SystemExit as end:  # argparse has said on the console why: help, version, or wrong usage
        return end.code if isinstance(end.code, int) else 2
    try:
        status: int = _module(arguments.command).run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_left()
    except (MMCacheError, OSError) as error:
        print(f"mmcache {arguments.command}: {error}", file=sys.stderr)
        return 1
    return status


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for these arguments: only the command among them is imported to ask for its options."""
    parser = argparse.ArgumentParser(prog="mmcache", description=mmcache.__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"mmcache {mmcache.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    asked_for = next((argument for argument in given if not argument.startswith("-")), None)
    for name, purpose in _COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose, allow_abbrev=False)
        if name == asked_for:
            _module(name).add_arguments(command)
    return parser


def _module(command: str) -> "_Command":
    return import_module(f"mmcache.cli.{command}")


def _reader_left() -> int:
    """Let nothing more be written to a pipe that nobody reads (``mmcache … | head``), not even at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
