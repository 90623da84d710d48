"""What the cache does under one full ``Processor`` and what geometry promises of it; run as a module, of all of them.

``python -m tests.matrix.processor_report [NAME ...]`` prints one line for each and the totals.
"""

import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import transformers
from PIL import Image

import mmcache
from mmcache.layout.compare import difference
from mmcache.layout.geometry import outline, summary
from mmcache.observing import Geometry
from tests.matrix.processors import CannotBeBuilt, Ready, build, processor_classes
from tests.pictures import picture

# Whether images are nested by text, and the type of tensors that is asked for.
Form = tuple[bool, str | None]

ROUNDS: tuple[Form, ...] = ((False, "pt"), (True, "pt"), (False, None), (True, None))

# Samples of pictures by letter. The first calls are where trials run; from then on the real runs are counted.
_PRIMING = (("p", "q"), ("pq",), ("p",))
_STEPS = {
    "one text with one image": ("a",),
    "two texts with one image each": ("b", "c"),
    "one text with two images": ("cd",),
    "the same image again": ("a",),
    "a seen image and a new one": ("a", "e"),
    "a new one of another size and a seen one": ("W", "b"),
    "a large one and a seen one": ("X", "a"),
    "one image under two texts": ("f", "f"),
}

# Widths and heights of pictures; those of the other letters are equal.
_SIZES = {"W": (64, 96), "X": (640, 480)}
_SIZE = (96, 64)

# Heights and widths: small, wide, tall, square, large.
SIZES = ((48, 64), (120, 900), (900, 120), (448, 448), (1000, 1400))

# So long may a trial take here: what is served after it is looked at, however busy the machine is.
_PATIENCE_SECONDS = 120.0

# Options of a call by which a processor may take another number of tokens, where it has them.
_SWITCHES = ("crop_to_patches", "do_image_splitting", "do_pan_and_scan", "do_resize")
_NUMBERS = {"max_pixels": 50_176, "merge_size": 1, "max_patches": 2, "max_image_size": {"longest_edge": 182}}

# What a promise may be: what the real call gives, no number, or no answer to what the processor refuses.
_RIGHT = ("equal", "unknown", "refused")


@dataclass
class Served:
    """How a wrapped processor did beside the plain one."""

    calls: int = 0
    refused: int = 0
    differences: list[str] = field(default_factory=list)
    """Calls whose outcome was not the plain one's."""
    overruns: list[str] = field(default_factory=list)
    """Calls in which the image processor did not run on the missing images, and on each of them once."""
    info: Any = None


@dataclass(frozen=True)
class Promise:
    """What geometry promised for one size, and what the real call gave."""

    options: Mapping[str, Any]
    size: tuple[int, int]
    geometry: Geometry | Exception | None
    real: Geometry | Exception

    @property
    def kind(self) -> str:
        """Return "equal", "unknown" or "refused", or else what is wrong with it."""
        if isinstance(self.geometry, Exception):
            return f"geometry raises {self.geometry!r}"
        promised = (self.geometry or {}).get("num_tokens")
        if isinstance(self.real, Exception):
            return "refused" if promised is None else f"{promised} tokens promised, refused: {self.real!r}"
        if promised is None and self.real["num_tokens"]:
            return "unknown"
        if promised not in (None, self.real["num_tokens"]):
            return f"{promised} tokens promised, {self.real['num_tokens']} given"
        return _shapes(self.geometry or {}, self.real) or "equal"

    @property
    def is_wrong(self) -> bool:
        """Whether something was promised that is not so."""
        return self.kind not in _RIGHT

    def __str__(self) -> str:
        return f"{dict(self.options)} {self.size}: {self.kind}"


def _shapes(geometry: Geometry, real: Geometry) -> str:
    """Return how what was promised differs from what was given, beside tokens, where both tell it."""
    promised, given = ({name: value for name, value in of.items() if name != "num_tokens"} for of in (geometry, real))
    return f"{promised} promised, {given} given" if given and promised and given != promised else ""


@dataclass
class _Runs:
    """What really reached an image processor, and what its outputs were like."""

    images: int = 0
    outputs: list[Geometry] = field(default_factory=list)


def serve(ready: Ready, cache: mmcache.Cache, rounds: Iterable[Form] = ROUNDS) -> Served:
    """Call a processor plain and wrapped, image by image old and new, and compare."""
    served, wrapped = Served(), mmcache.wrap(ready.processor, cache)
    with mock.patch("mmcache.wrapping.PATIENCE_SECONDS", _PATIENCE_SECONDS):
        for number, (nested, tensors) in enumerate(rounds):
            known = _Round()
            for samples in (*_PRIMING, *_STEPS.values()):
                _compare(ready, wrapped, cache, served, _Call(samples, nested, tensors, number), known)
    cache.settle()
    served.info = cache.cache_info()
    return served


@dataclass
class _Round:
    """The pictures, or whole samples, of calls that were accepted, and of others: they may have been processed first."""

    seen: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Call:
    samples: Sequence[str]
    nested: bool
    tensors: str | None
    round: int

    def __str__(self) -> str:
        return f"{'nested' if self.nested else 'flat'} {list(self.samples)} return_tensors={self.tensors}"

    def outcome(self, ready: Ready, processor: Any) -> Any:
        pictures = [[self._picture(letter) for letter in sample] for sample in self.samples]
        return _outcome(lambda: ready.call(processor, pictures, nested=self.nested, return_tensors=self.tensors))

    def _picture(self, letter: str) -> Image.Image:
        """Return a picture that no other round has: the same image with other tensors is another item."""
        return picture(1000 * self.round + ord(letter), *_SIZES.get(letter, _SIZE))


def _compare(ready: Ready, wrapped: Any, cache: mmcache.Cache, served: Served, call: _Call, known: _Round) -> None:
    """Call both and note what differs."""
    expected = call.outcome(ready, ready.processor)
    before = cache.cache_info().bypassed
    with _watched(type(ready.processor.image_processor)) as runs:
        found = call.outcome(ready, wrapped)
    served.calls += 1
    if where := disagreement(expected, found):
        served.differences.append(f"{call}: {where}")
    units = set(call.samples if call.nested and ready.family.whole_samples else "".join(call.samples))
    if isinstance(expected, Exception):
        served.refused += 1
        known.refused |= units
        return
    most, least = (sum(len(unit) for unit in units - done) for done in (known.seen, known.seen | known.refused))
    known.seen |= units
    counts = call.samples not in _PRIMING and cache.cache_info().bypassed == before
    if counts and not least <= runs.images <= most:
        served.overruns.append(f"{call}: {runs.images} images processed, {most} missing")


def disagreement(expected: Any, found: Any) -> str:
    """Return how two outcomes differ: outputs to the bit, exceptions in type and text."""
    if not isinstance(expected, Exception) and not isinstance(found, Exception):
        if type(expected) is type(found) is transformers.BatchEncoding:  # its attributes equal nothing but themselves
            expected, found = dict(expected), dict(found)
        return difference(expected, found)
    same = type(expected) is type(found) and str(expected) == str(found)
    return "" if same else f"{found!r} instead of {expected!r}"


def _outcome(call: Any) -> Any:
    try:
        return call()
    except Warning:  # an error of the test's own settings, and no refusal
        raise
    except Exception as error:  # noqa: BLE001 - a refusal is an outcome like any other
        return error


def variations(ready: Ready) -> list[dict[str, Any]]:
    """Return no options, and options of a call by which the number of tokens may be another one."""
    image_processor = ready.processor.image_processor
    found: list[dict[str, Any]] = [{}]
    size: Any = getattr(image_processor, "size", None)
    if hasattr(size, "items"):
        halved = {name: side // 2 if isinstance(side, int) else side for name, side in size.items() if side is not None}
        found.append({"size": halved})
    switches = {name: getattr(image_processor, name, None) for name in _SWITCHES}
    found.extend({name: not value} for name, value in switches.items() if isinstance(value, bool))
    accepted = getattr(image_processor, "_valid_kwargs_names", ())
    found.extend({name: value} for name, value in _NUMBERS.items() if name in accepted)
    return found


def promises(ready: Ready, options: Mapping[str, Any], sizes: Sequence[tuple[int, int]] = SIZES) -> list[Promise]:
    """Ask for the geometry of sizes, and of an image of each, and see what the real calls give; none if all are refused."""
    real = [_real(ready, picture(9, width, height), options) for height, width in sizes]
    if all(isinstance(outcome, Exception) for outcome in real):
        return []
    images = [picture(8, width, height) for height, width in sizes]
    return [
        Promise(options, size, geometry, outcome)
        for asked in (list(sizes), images)
        for size, geometry, outcome in zip(sizes, _answers(ready, asked, options), real, strict=True)
    ]


def _answers(ready: Ready, asked: Sequence[Any], options: Mapping[str, Any]) -> Sequence[Any]:
    answers = _outcome(lambda: mmcache.geometry(ready.processor, asked, **{**ready.options(1), **options}))
    return [answers] * len(asked) if isinstance(answers, Exception) else answers


def _real(ready: Ready, image: Image.Image, options: Mapping[str, Any]) -> Any:
    """Return what a call with one image really gave: tokens, and what its image processor's outputs were like."""
    with _watched(type(ready.processor.image_processor)) as runs:
        inputs = _outcome(lambda: ready.call(ready.processor, [[image]], return_tensors="pt", **options))
    if isinstance(inputs, Exception):
        return inputs
    tokens = ready.placeholder_tokens(inputs) if "input_ids" in inputs else 0
    shapes = runs.outputs[0] if len(runs.outputs) == 1 else {}
    return {**shapes, "num_tokens": tokens}


@contextmanager
def _watched(cls: type) -> Iterator[_Runs]:
    """Note each real run of an image processor class."""
    runs = _Runs()
    # Where the method is defined: a new member of the class itself would change the identity of its code.
    owner: Any = next(base for base in cls.__mro__ if "preprocess" in vars(base))
    original = owner.preprocess

    def preprocess(self: Any, images: Any, *args: Any, **options: Any) -> Any:
        output = original(self, images, *args, **options)
        runs.images += _number(images)
        # At once, since a Processor takes out what it has read.
        runs.outputs.append(summary(outline(output)) if options.get("return_tensors") == "pt" else {})
        return output

    # Invisible to the identity of the class, like mmcache's own wrappers.
    preprocess.__mmcache_original__ = original  # type: ignore[attr-defined]
    with mock.patch.object(owner, "preprocess", preprocess):
        yield runs


def _number(images: Any) -> int:
    return sum(_number(image) for image in images) if isinstance(images, list | tuple) else 1


def _line(name: str) -> tuple[Counter[str], list[str]]:
    """Return the figures of one processor, and remarks."""
    try:
        ready = build(name)
    except Exception as error:  # noqa: BLE001 - whatever a constructor raises is the reason
        return Counter(found=1), [f"not built: {error if isinstance(error, CannotBeBuilt) else repr(error)[:150]}"]
    figures, remarks = Counter(found=1, built=1), list[str]()
    for look in (_serving, _promising):
        more, said = look(ready)
        figures.update(more)
        remarks += said
    return figures, remarks


def _serving(ready: Ready) -> tuple[Counter[str], list[str]]:
    with mmcache.Cache("1GiB", verify_rate=0, max_overhead=1) as cache:
        try:
            served = serve(ready, cache)
        except mmcache.BadArgument as refused:
            return Counter({"not wrapped": 1}), [str(refused)]
    info = served.info
    figures = Counter(
        calls=served.calls, refused=served.refused, differences=len(served.differences),
        overruns=len(served.overruns), hits=info.hits + info.coalesced, misses=info.misses, bypassed=info.bypassed,
        errors=info.errors, mismatches=info.mismatches,
    )  # fmt: skip
    bypasses = [f"bypassed {count}: {reason}" for reason, count in info.bypass_reasons.items()]
    return figures, [*_shortened(served.differences), *_shortened(served.overruns), *bypasses]


def _promising(ready: Ready) -> tuple[Counter[str], list[str]]:
    given = [promise for options in variations(ready) for promise in promises(ready, options)]
    kinds = Counter(promise.kind for promise in given)
    wrong = [str(promise) for promise in given if promise.is_wrong]
    figures = Counter({f"sizes {kind}": kinds[kind] for kind in _RIGHT} | {"sizes wrong": len(wrong)})
    unknown = sorted({str(dict(promise.options)) for promise in given if promise.kind == "unknown"})
    return figures, [*_shortened(wrong), *([f"tokens unknown with {', '.join(unknown)}"] if unknown else [])]


def _shortened(remarks: Sequence[str]) -> Sequence[str]:
    return remarks if len(remarks) <= 3 else [*remarks[:3], f"and {len(remarks) - 3} more like these"]


def main(names: Sequence[str]) -> None:
    """Print what happens under each of these processors, or all."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(logging.CRITICAL)
    totals: Counter[str] = Counter()
    for name in names or processor_classes():
        began = time.perf_counter()
        figures, remarks = _line(name)
        totals += figures
        totals.update(_verdicts(figures))
        print(f"{name} ({time.perf_counter() - began:.1f} s): {_figures(figures)}", flush=True)
        for remark in remarks:
            print(f"    {remark}", flush=True)
    print(f"\ntransformers {transformers.__version__}: {_figures(totals)}")


def _verdicts(figures: Counter[str]) -> list[str]:
    """Return what is so of a processor that was built."""
    asked = sum(figures[f"sizes {kind}"] for kind in _RIGHT)
    judged = {
        "processors equal to plain": figures["calls"] and not figures["differences"],
        "processors served": figures["hits"] and not figures["bypassed"] and not figures["overruns"],
        "processors with tokens known": asked and not figures["sizes unknown"] and not figures["sizes wrong"],
        "processors with tokens unknown": figures["sizes unknown"],
        "processors with wrong promises": figures["sizes wrong"],
    }
    return [verdict for verdict, holds in judged.items() if holds]


def _figures(figures: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in figures.items() if count)


if __name__ == "__main__":
    main(sys.argv[1:])
