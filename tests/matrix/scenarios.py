"""What is asked of one image processor: pictures, and calls on them in an order that makes misses, hits and both at once.

A seed makes the same scenario of a class wherever it runs, whichever other classes are looked at.
"""

import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from PIL import Image

from tests.pictures import picture

Form = Literal["one", "flat", "nested"]

FORMS: tuple[Form, ...] = ("one", "flat", "nested")
TENSORS = ("pt", "np", None)

_MOST_IMAGES = 6

# The pictures of equal sizes: without resizing and padding, batches of others are refused.
_EQUAL = (0, 1)

# Modes that processors convert in their own way, or refuse. One of them for each seed: each has trials of its own.
_MODES = ("L", "RGBA", "P", "LA", "CMYK", "1", "I;16")

# Option sets of one class; each is a trial of 0.05 to 3 seconds for each form and kind of output that it is tried in.
_MOST_OPTION_SETS = 8


@dataclass(frozen=True)
class Call:
    """One call: the pictures of each sample by their numbers in the pool (alone and flat have one sample)."""

    form: Form
    samples: tuple[tuple[int, ...], ...]
    tensors: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def images(self, pool: Sequence[Image.Image]) -> Any:
        """Return copies of the pictures, in the form of the call."""
        samples = [[pool[pick].copy() for pick in sample] for sample in self.samples]
        if self.form == "nested":
            return samples
        return samples[0][0] if self.form == "one" else samples[0]

    @property
    def count(self) -> int:
        """How many images there are."""
        return sum(len(sample) for sample in self.samples)

    def keywords(self) -> dict[str, Any]:
        """Return the call's options, with ``return_tensors`` if it is given."""
        return {**self.options, **({} if self.tensors is None else {"return_tensors": self.tensors})}

    def __str__(self) -> str:
        """Say what is called, for a report."""
        return f"{self.form} {self.samples} return_tensors={self.tensors!r} {dict(self.options)}"


@dataclass(frozen=True)
class Scenario:
    """Pictures, and calls on them, to be made one after the other on one cache."""

    pool: tuple[Image.Image, ...]
    calls: tuple[Call, ...]


def scenario(processor: Any, seed: str) -> Scenario:
    """Make the scenario of an image processor for a seed."""
    chance = random.Random(f"{seed} {type(processor).__name__}")
    plain, odd = _plain_pictures(chance), _odd_pictures(chance)
    calls = [
        *_default_calls(chance, range(len(plain))),
        *_option_calls(chance, range(len(plain)), option_sets(processor, chance)),
        *_odd_calls(chance, range(len(plain)), range(len(plain), len(plain) + len(odd)), _gentler(processor)),
    ]
    return Scenario((*plain, *odd), tuple(calls))


def _plain_pictures(chance: random.Random) -> list[Image.Image]:
    """Return RGB pictures: two of one size, a wide and a high one, a small one, a page, and now and then a large one."""
    width, height = chance.randint(100, 500), chance.randint(100, 500)
    edge = chance.randint(50, 100)
    sizes = [
        (width, height), (width, height),
        (edge * chance.randint(3, 5), edge), (edge, chance.randint(2 * edge, 400)),
        (chance.randint(20, 60), chance.randint(20, 60)),
    ]  # fmt: skip
    if chance.random() < 0.2:  # each costs as much as ten others
        sizes.append((chance.randint(800, 1400), chance.randint(800, 1400)))
    return [*(picture(chance.getrandbits(32), *size) for size in sizes), _page(chance)]


def _page(chance: random.Random) -> Image.Image:
    """Return a white picture with something on it: some processors cut off margins, or look for what is empty."""
    page = Image.new("RGB", (chance.randint(150, 400), chance.randint(150, 400)), "white")
    page.paste(picture(chance.getrandbits(32), 60, 40), (chance.randint(0, 90), chance.randint(0, 110)))
    return page


def _odd_pictures(chance: random.Random) -> list[Image.Image]:
    """Return a picture in another mode, and a tiny one, which many refuse."""
    mode, seed = chance.choice(_MODES), chance.getrandbits(32)
    # Where an array is as high as it has channels, or one pixel, processors guess which axis is which.
    tiny = picture(seed, *chance.choice(((1, 1), (40, 1), (40, 3), (3, 40))))
    width, height = chance.randint(60, 300), chance.randint(60, 300)
    if mode == "I;16":
        deep = np.random.default_rng(seed).integers(0, 65536, (height, width), np.uint16)
        return [Image.fromarray(deep), tiny]
    return [picture(seed, width, height).convert(mode), tiny]


def _default_calls(chance: random.Random, pictures: range) -> Iterator[Call]:
    """Yield calls with default options: in every form and kind of output cold, the same again, and half of it new."""
    for tensors, form in itertools.product(TENSORS, FORMS):
        first = _samples(chance, form, pictures)
        for samples in (first, first, _half_known(chance, form, first, pictures), _samples(chance, form, _EQUAL)):
            yield Call(form, samples, tensors)


def _option_calls(chance: random.Random, pictures: range, sets: Sequence[Mapping[str, Any]]) -> Iterator[Call]:
    """Yield calls with each option set, in a form and kind of output of chance's choice."""
    for options in sets:
        form, tensors = chance.choice(("flat", *FORMS)), chance.choice(("pt", *TENSORS))
        first = _samples(chance, form, pictures)
        for samples in (first, _half_known(chance, form, first, pictures), _samples(chance, form, _EQUAL)):
            yield Call(form, samples, tensors, options)


def _odd_calls(chance: random.Random, pictures: range, odd: range, sets: Sequence[Mapping[str, Any]]) -> Iterator[Call]:
    """Yield flat calls with pictures that are not like the others, alone and among them, cold and warm."""
    for options, pick in itertools.product(sets, odd):
        among = [pick, *chance.choices(pictures, k=2)]
        chance.shuffle(among)
        for picks in ((pick,), tuple(among), (pick, pick), (pick, *_EQUAL), (*_EQUAL, pick)):
            yield Call("flat", (picks,), "pt", options)


def _gentler(processor: Any) -> list[dict[str, Any]]:
    """Return no options, and those with which pictures of other than three channels are accepted alone."""
    return [{}, {"do_normalize": False}] if "do_normalize" in _accepted(processor) else [{}]


def _samples(chance: random.Random, form: Form, pictures: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Draw 1 to 6 pictures, repeats among them; for nested lists in samples of unequal numbers."""
    if form == "one":
        return ((chance.choice(pictures),),)
    picks = tuple(chance.choices(pictures, k=chance.randint(1 if form == "flat" else 2, _MOST_IMAGES)))
    if form == "flat":
        return (picks,)
    cuts = sorted(chance.sample(range(1, len(picks)), min(len(picks) - 1, chance.randint(0, 2))))
    return tuple(picks[start:stop] for start, stop in itertools.pairwise((0, *cuts, len(picks))))


def _half_known(
    chance: random.Random, form: Form, first: tuple[tuple[int, ...], ...], pictures: range
) -> tuple[tuple[int, ...], ...]:
    """Draw again, from the pictures of the first call and as many others."""
    known = [pick for sample in first for pick in sample]
    return _samples(chance, form, [*known, *chance.choices(pictures, k=len(known))])


def option_sets(processor: Any, chance: random.Random) -> list[dict[str, Any]]:
    """Return options that a processor accepts, each unlike its default: the common ones, and some of the others."""
    accepted = {name: value for name in _accepted(processor) if (value := _another(processor, name)) is not None}
    common = [name for name in accepted if name in _COMMON]
    rest = [name for name in accepted if name not in _COMMON]
    drawn = chance.sample(rest, min(len(rest), max(2, _MOST_OPTION_SETS - len(common))))
    sets = [{**_missing_beside(processor, name), name: accepted[name]} for name in (*common, *drawn)]
    if {"do_rescale", "do_normalize"} <= accepted.keys():
        sets.append({"do_rescale": False, "do_normalize": False})
    return sets


def _accepted(processor: Any) -> list[str]:
    names = {*getattr(processor, "_valid_kwargs_names", ()), *inspect.signature(processor.preprocess).parameters}
    return sorted(names)


def _another(processor: Any, name: str) -> Any:
    """Return another value of an option than its default; None if there is none worth trying."""
    value = getattr(processor, name, None)
    if name in _OTHERS:
        return _OTHERS[name](value)
    if isinstance(value, bool) or (value is None and name.startswith("do_")):
        return not value
    return None


def _missing_beside(processor: Any, name: str) -> dict[str, Any]:
    """Return what an option cannot do without, where the processor has no default for it."""
    return {other: value for other, value in _BESIDE.get(name, {}).items() if getattr(processor, other, None) is None}


def _smaller(value: Any) -> Any:
    """Return half of a size, wherever it stands: a number, or numbers by name; numbers of pixels are cut to a few."""
    if isinstance(value, int):
        return min(value // 2, 50_000) if value > 1 else None
    named = {name: number for name, number in dict(value or {}).items() if isinstance(number, int)}
    return {name: max(1, _smaller(number) or 1) for name, number in named.items()} or None


def _third(value: Any) -> Any:
    return max(1, value // 3) if isinstance(value, int) and value > 1 else None


def _fewer(value: Any) -> Any:
    return list(value)[:2] or None if value else None


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


# What people most often set, and what changes how many outputs an image has.
_COMMON = {
    "crop_to_patches", "do_center_crop", "do_convert_rgb", "do_image_splitting", "do_pad", "do_pan_and_scan",
    "do_resize", "max_patches", "max_pixels", "return_codebook_pixels", "return_image_mask", "size", "split_image",
}  # fmt: skip

# What goes with an option that is off by default.
_BESIDE: Mapping[str, Mapping[str, Any]] = {
    "do_center_crop": {"crop_size": {"height": 84, "width": 84}},
    "do_pad": {"pad_size": {"height": 1200, "width": 1200}},
    "do_pan_and_scan": {
        "pan_and_scan_min_crop_size": 64, "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_ratio_to_activate": 1.2,
    },
    "do_resize": {"size": {"height": 112, "width": 112}, "resample": 2},
}  # fmt: skip

# By name of the option, what to give instead of its default. Switches need no entry: they are turned.
_OTHERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("crop_size", "high_res_size", "max_image_size", "max_image_tokens", "max_num_patches", "max_soft_tokens",
         "pad_size", "scale_resolution", "size", "tile_size"),
        _smaller,
    ),
    **dict.fromkeys(
        ("max_crops", "max_image_tiles", "max_num_tiles", "max_patches", "max_slice_nums", "max_tiles"), _third
    ),
    **dict.fromkeys(("image_grid_pinpoints", "split_resolutions"), _fewer),
    **dict.fromkeys(("merge_size", "temporal_patch_size"), _always(1)),
    "disable_grouping": _always(True),
    "image_mean": _always([0.4, 0.5, 0.6]),
    "image_std": _always([0.2, 0.3, 0.4]),
    "max_pixels": _always(40_000),
    "min_pixels": _always(30_000),
    "resample": lambda value: Image.Resampling.BICUBIC if value == Image.Resampling.BILINEAR else 2,
    "rescale_factor": _always(1 / 128),
    "size_divisor": _always(16),
}  # fmt: skip
