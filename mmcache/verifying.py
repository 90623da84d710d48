"""Verifying: a user's own processor, plain and wrapped, on random batches of their own pictures, bit for bit."""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mmcache.cache import Cache
from mmcache.calls import Bypass
from mmcache.errors import BadArgument
from mmcache.layout.compare import difference
from mmcache.lengths import geometry_source
from mmcache.processing import ProcessorCall
from mmcache.randomness import random_states
from mmcache.wrapping import plain_with_images, takes_images, wrap

# Of the pictures that are made up: mostly what data sets hold, and one each of what processors convert in their own way
# (each mode has trials of its own, so that more of them cost more than they tell).
_MODES = ("RGB", "RGB", "RGB", "RGB", "RGB", "L", "RGBA", "P")

# Heights and widths in pixels: from icons to photographs that are cut into tiles.
_LEAST_SIDE, _MOST_SIDE = 24, 1000

# Six images at once make every kind of sample and padding, and still run in seconds.
_MOST_IMAGES = 6

_FORMS = ("one", "flat", "flat", "nested")
_TENSORS = ("pt", "np", None)

# Medians of fewer are noise, more take time and say the same.
_TIMED_PICTURES = 5

# Large enough to keep every picture of a run, so that the second time is a hit.
_MAX_BYTES = "1GiB"

# The trial is what is verified, so it is waited for, however long it takes.
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    Attributes:
        processor: the class of what was verified.
        batches: how many batches were compared, each processed twice with the cache; ``images`` is how many images
            there were in them.
        fields: for each form of call that is served in batches ("flat", "nested") and kind of output (``"pt"``,
            ``"np"``, ``"None"``), the rule by which each output is joined from single images.
        geometry: where `mmcache.geometry` takes an image's geometry from.
        served: how many images came from the cache, or were put into it, for each form.
        bypassed: why images went to the plain processor, and how many.
        plain_seconds: the median time of one image without the cache; ``miss_seconds`` and ``hit_seconds`` with it.
        faults: what failed inside the cache (each such call was answered by the plain processor).
        difference: "" if all outputs, errors and random generators were the plain ones', else the first that was not.
        reproduce: how to see the difference again.
    """

    processor: str
    batches: int
    images: int
    fields: dict[str, dict[str, str]]
    geometry: str
    served: dict[str, int]
    bypassed: dict[str, int]
    plain_seconds: float
    miss_seconds: float
    hit_seconds: float
    faults: int
    difference: str
    reproduce: str

    @property
    def ok(self) -> bool:
        """Whether every output was the plain processor's, to the bit."""
        return not self.difference

    @property
    def verdict(self) -> str:
        """What it comes to, in one sentence."""
        if not self.ok:
            return f"NOT EXACT: do not wrap this processor, and report this: {self.difference}."
        served, bypassed = sum(self.served.values()), sum(self.bypassed.values())
        if not served:
            return f"Exact, but of no use: nothing is served from the cache ({self._main_reason()})."
        if not bypassed:
            return f"Exact: all {self.batches} batches are the plain processor's to the bit, and all are served."
        share = 100 * served / (served + bypassed)
        return f"Exact; {share:.0f} % of the images are served, the others are not: {self._main_reason()}."

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, texts and numbers, with ``ok`` and ``verdict``; times are seconds."""
        return {"ok": self.ok, "verdict": self.verdict, **asdict(self)}

    def __str__(self) -> str:
        """Write it for people, the verdict first."""
        return "\n".join([self.verdict, *self._lines()])

    def _main_reason(self) -> str:
        return max(self.bypassed, key=lambda reason: self.bypassed[reason], default="no image was accepted")

    def _lines(self) -> list[str]:
        lines = [
            f"{self.processor}: {self.batches} batches, {self.images} images, each processed plain and twice cached"
        ]
        if self.reproduce:
            lines.append(f"again: {self.reproduce}")
        lines.append(
            f"one image: plain {1000 * self.plain_seconds:.2f} ms, "
            f"a miss {1000 * self.miss_seconds:.2f} ms, a hit {1000 * self.hit_seconds:.2f} ms"
        )
        lines.append(f"geometry: {self.geometry}")
        lines += [f"{form}: {images} images served" for form, images in self.served.items()]
        rules: dict[tuple[str, str], list[str]] = {}
        for form, fields in self.fields.items():
            for name, rule in fields.items():
                rules.setdefault((name, rule), []).append(form)
        lines += [f"{name or 'the output'}: {rule} ({', '.join(forms)})" for (name, rule), forms in rules.items()]
        lines += [f"bypassed {images} images: {reason}" for reason, images in self.bypassed.items()]
        return lines + ([f"{self.faults} faults inside the cache"] if self.faults else [])


def verify(processor: Any, images: Sequence[Any] | None = None, *, batches: int = 20, seed: int = 0) -> Report:
    """Compare a processor with itself behind a private cache, bit for bit, on random batches.

    Args:
        processor: a Hugging Face image processor, or a ``Processor``: then its image processor is compared, and the
            whole on texts with pictures, if it has a placeholder for them.
        images: pictures as they are handed to the processor; None makes noise of many sizes and modes.
        batches: how many batches of 1 to 6 pictures (repeats among them), alone, flat and nested, with all three
            values of ``return_tensors``.
        seed: the same seed makes the same batches.

    Raises:
        BadArgument: not a processor, no images, or not a number of batches.
    """
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 1:
        raise BadArgument("batches", batches, "a number of batches, 1 or more")
    if isinstance(images, str | bytes) or (images is not None and not len(images)):
        raise BadArgument("images", images, "a list of pictures, or None for made-up ones")
    before = random_states()
    pictures = list(images) if images is not None else _made_up(seed)
    plain = plain_with_images(processor)
    try:
        # Without verification in traffic, which would put right what is to be seen here.
        with Cache(_MAX_BYTES, name="verify", verify_rate=0, max_overhead=1) as cache:
            return _Verification(plain, cache, pictures, random.Random(seed)).report(
                batches, seed, given=images is not None
            )
    finally:
        before.restore()


def _made_up(seed: int) -> list[Image.Image]:
    """Return a picture of each mode with noise in it: sizes differ, but for the first two."""
    generator = np.random.default_rng(seed)
    pictures: list[Image.Image] = []
    for number, mode in enumerate(_MODES):
        height, width = generator.integers(_LEAST_SIDE, _MOST_SIDE, 2).tolist()
        if number == 1:
            width, height = pictures[0].size
        noise = generator.integers(0, 256, (height, width, 3), np.uint8)
        pictures.append(Image.fromarray(noise).convert(mode))
    return pictures


class _Batch(NamedTuple):
    """One call to be compared: which pictures, in which form, and as what they are to come back."""

    form: str
    picks: list[int]
    tensors: str | None

    def arranged(self, pictures: Sequence[Any]) -> Any:
        chosen = [pictures[pick] for pick in self.picks]
        if self.form == "one":
            return chosen[0]
        # Samples of unequal numbers of images: the first has one more than the second, and so on.
        return (
            chosen if self.form in ("flat", "text") else [chosen[: -(len(chosen) // 2)], chosen[-(len(chosen) // 2) :]]
        )


class _Verification:
    """One run of `verify`."""

    def __init__(self, plain: Any, cache: Cache, pictures: Sequence[Any], chance: random.Random) -> None:
        self._plain, self._cache, self._pictures, self._chance = plain, cache, pictures, chance
        self._wrapped = wrap(plain, cache)
        alone = takes_images(type(plain))
        self._image_processor = plain if alone else plain.image_processor
        self._cached_image_processor = self._wrapped if alone else self._wrapped.image_processor
        placeholder = None if alone else getattr(plain, "image_token", None)
        self._placeholder = placeholder if isinstance(placeholder, str) else None
        self._fields: dict[str, dict[str, str]] = {}
        self._served: Counter[str] = Counter()

    def report(self, batches: int, seed: int, *, given: bool) -> Report:
        """Compare batches until one differs, and write down what was seen."""
        compared = images = 0
        found = reproduce = ""
        for number in range(1, batches + 1):
            batch = self._next_batch()
            compared, images = number, images + len(batch.picks)
            if found := self._compared(batch):
                found = (
                    f"batch {number} ({batch.form}, return_tensors={batch.tensors!r}, pictures {batch.picks}): {found}"
                )
                argument = ", images" if given else ""
                reproduce = f"mmcache.verify(processor{argument}, batches={number}, seed={seed})"
                break
        info = self._cache.cache_info()
        return Report(
            type(self._plain).__qualname__, compared, images, self._fields, self._geometry(), dict(self._served), info.bypass_reasons,
            *self._costs(), faults=info.errors, difference=found, reproduce=reproduce,
        )  # fmt: skip

    def _geometry(self) -> str:
        try:
            return geometry_source(self._plain)
        except Exception as error:  # noqa: BLE001 - what it refuses is said, and the batches have been compared
            return f"none: {type(error).__name__}: {error}"

    def _next_batch(self) -> _Batch:
        form = self._chance.choice((*_FORMS, "text") if self._placeholder is not None else _FORMS)
        count = {"one": 1, "nested": self._chance.randint(2, _MOST_IMAGES)}.get(
            form, self._chance.randint(1, _MOST_IMAGES)
        )
        picks = [self._chance.randrange(len(self._pictures)) for _ in range(count)]
        return _Batch(form, picks, "pt" if form == "text" else self._chance.choice(_TENSORS))

    def _compared(self, batch: _Batch) -> str:
        """Return how the cached outputs of a batch differ from the plain one, or ""."""
        images = batch.arranged(self._pictures)
        plain, cached = self._ways(batch, images)
        self._tried(batch, images)
        before = random_states()
        expected = _outcome(plain)
        after = random_states()
        for time_ in ("the first time", "the second time"):
            before.restore()
            looked_up = self._looked_up()
            found = difference(expected, _outcome(cached))
            if not found and random_states() != after:
                found = "the random generators are left in another state"
            self._served[batch.form] += self._looked_up() - looked_up
            if found:
                return f"{time_}: {found}"
        return ""

    def _ways(self, batch: _Batch, images: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return the plain call and the cached one."""
        if batch.form == "text":
            texts = {"text": (self._placeholder or "") * len(batch.picks), "images": images, "return_tensors": "pt"}
            return lambda: self._plain(**texts), lambda: self._wrapped(**texts)
        options = {} if batch.tensors is None else {"return_tensors": batch.tensors}
        return (
            lambda: self._image_processor(images, **options),
            lambda: self._cached_image_processor(images, **options),
        )

    def _tried(self, batch: _Batch, images: Any) -> None:
        """Wait for the trial of this structure, and note the fields that it found."""
        if batch.form == "text":
            # What its image processor is given is the Processor's to say: its trial starts with the call itself.
            _outcome(self._ways(batch, images)[1])
            self._cache.settle()
            return
        options = {} if batch.tensors is None else {"return_tensors": batch.tensors}
        processor = self._image_processor
        call = ProcessorCall(
            self._cache, processor, type(processor).preprocess, (images,), options, patience=_PATIENCE_SECONDS
        )
        try:
            call.keys()
        except Bypass:
            return
        except Exception:  # noqa: BLE001 - whatever is wrong with the call, comparing it with the plain one will tell
            return
        if call.verdict.layout is not None:
            fields = {name: repr(field) for name, field in call.verdict.layout.fields.items()}
            if batch.form == "nested" and call.verdict.layout.samples is not None:
                fields = {
                    name: f"{rule}, samples by {call.verdict.layout.samples[name]!r}" for name, rule in fields.items()
                }
            self._fields[f"{batch.form} {batch.tensors}"] = fields

    def _looked_up(self) -> int:
        info = self._cache.cache_info()
        return info.hits + info.misses + info.coalesced

    def _costs(self) -> tuple[float, float, float]:
        """Return the median seconds of one picture: plain, a miss, a hit; 0 where every picture is refused."""
        times = []
        for picture in self._pictures[:_TIMED_PICTURES]:
            self._cache.clear()
            ways = (self._image_processor, self._cached_image_processor, self._cached_image_processor)
            try:
                times.append([_seconds(way, picture) for way in ways])
            except Exception:  # noqa: BLE001 - a picture that is refused costs nothing worth knowing
                continue
        medians = [statistics.median(column) for column in zip(*times, strict=True)] or [0.0, 0.0, 0.0]
        return medians[0], medians[1], medians[2]


def _outcome(call: Callable[[], Any]) -> Any:
    """Return an output, or the type and text of an exception: both are to be the same."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - errors are outcomes
        return f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def _seconds(way: Callable[..., Any], picture: Any) -> float:
    started = time.perf_counter()
    way([picture], return_tensors="pt")
    return time.perf_counter() - started
