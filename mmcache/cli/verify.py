"""``mmcache verify``: is a processor exact behind the cache, what is served, and what does it cost?

Looks for nothing outside this machine: a processor is one of the installed transformers' classes, as it is constructed
by default, or a folder that it was saved in. The exit status is 1 if an output differs, 2 if there is no such
processor.
"""

import argparse
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import mmcache
from mmcache.cli.arguments import count, folder
from mmcache.cli.pictures import pictures_in
from mmcache.wrapping import takes_images

# What says that there is more in a folder than an image processor.
_PROCESSOR_FILES = ("processor_config.json", "tokenizer_config.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument(
        "processor", metavar="CLASS|FOLDER", help="a class of transformers, or a folder with preprocessor_config.json"
    )
    parser.add_argument("--images", type=folder, metavar="FOLDER", help="use the pictures of a folder, not noise")
    parser.add_argument("--batches", type=count, default=20, metavar="N", help="how many batches (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="other numbers make other batches (default: 0)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 0 if everything is exact, 1 if an output differs, 2 if there is no such processor."""
    try:
        processor = _processor(arguments.processor)
    except _NoProcessor as problem:
        print(f"mmcache verify: {problem}", file=sys.stderr)
        return 2
    images = None
    if arguments.images:
        images = [picture.image for picture in pictures_in(arguments.images, _note)]
    report = mmcache.verify(processor, images, batches=arguments.batches, seed=arguments.seed)
    print(json.dumps(report.as_dict(), indent=2) if arguments.json else report)
    return 0 if report.ok else 1


class _NoProcessor(Exception):
    """There is none of this name; the text says what there could be."""


def _processor(name: str) -> Any:
    return _from_folder(Path(name)) if Path(name).is_dir() else _of_class(name)


def _from_folder(folder: Path) -> Any:
    import transformers

    whole = any((folder / file).is_file() for file in _PROCESSOR_FILES)
    kinds = (transformers.AutoProcessor, transformers.AutoImageProcessor)
    problem: Exception | None = None
    for kind in kinds if whole else kinds[1:]:
        try:
            processor = kind.from_pretrained(str(folder), local_files_only=True)  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001 - loaders raise what they like; it is said, with status 2
            problem = error
        else:
            if takes_images(type(processor)) or takes_images(type(getattr(processor, "image_processor", None))):
                return processor
    raise _NoProcessor(f"no image processor can be loaded from {str(folder)!r}: {problem or 'it has none'}")


def _of_class(name: str) -> Any:
    import transformers

    cls = getattr(transformers, name, None)
    if not inspect.isclass(cls) or not takes_images(cls):
        raise _NoProcessor(f"{name!r} is neither a folder nor an image processor class of transformers")
    try:
        return cls()
    except Exception as error:  # noqa: BLE001 - constructors raise what they like; it is said, with status 2
        raise _NoProcessor(f"{name} cannot be constructed without arguments: {error}") from None


def _note(skipped: str) -> None:
    print(f"mmcache verify: {skipped}", file=sys.stderr)
