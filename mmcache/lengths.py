"""Geometry for everybody who only needs lengths: how many tokens an image takes, without its pixels.

Nobody's arithmetic is repeated here. The processor itself runs on pictures without pixels (tensors on torch's ``meta``
device, which have a size and nothing in it), and its own method for the number of tokens is asked; either is believed
only where it agreed with real pictures: nine small ones, and the most extreme of the sizes that were asked for.
"""

import copy
import operator
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cachetools

from mmcache.errors import BadArgument, NotEncodable, NotIdentifiable
from mmcache.fingerprints import encode, kind_of
from mmcache.fingerprints.identity import RefusedOptions, describe_processor
from mmcache.forks import renew_in_children
from mmcache.layout.probes import Trait, image_trait, probes_like, size_of, trait_of
from mmcache.observing import Geometry, Observer
from mmcache.wrapping import plain_with_images, takes_images

# Processors with their options about which is remembered what was learned, and the sizes that each may have had.
_MOST_KNOWN = 32
_MOST_SIZES = 65536

# Pillow warns above this many pixels; a picture of zeros that is larger is not made only to try a size.
_MOST_PIXELS = 89_478_485

# So many of the most extreme sizes may be refused (most processors refuse strips) before the rest is taken as untried.
_MOST_REFUSED = 8


def geometry(processor: Any, images_or_sizes: Iterable[Any], **options: Any) -> list[Geometry | None]:
    """Return what is known of each image's outputs without computing its pixels.

    Args:
        processor: a Hugging Face ``Processor`` or image processor, wrapped or not.
        images_or_sizes: images (PIL, arrays, tensors), or sizes (height, width) in pixels of RGB images, mixed or not.
        options: those of the processor's call.

    Returns:
        One dict for each image: integer outputs (grids, sizes) as nested lists, shapes of pixels as tuples, as in
        `Ticket.geometry`; for a ``Processor`` also ``"num_tokens"``, the number of placeholder tokens, or None if it
        expands none or the number is not known. Where only that number is sure, it stands alone. None in place of a dict where nothing is sure,
        and for images that the processor refuses. An image is only processed if nothing else tells; for a size, a
        picture of that size is, once, unless outputs depend on what is in a picture.

    Raises:
        BadArgument: not a processor, or neither images nor sizes.
        Exception: what the processor raises, if it refuses everything, such as an option that it does not know.

    >>> from transformers import CLIPImageProcessor
    >>> geometry(CLIPImageProcessor(), [(480, 640)])
    [{'pixel_values': (1, 3, 224, 224)}]
    """
    asked = [_Asked.of(given) for given in _listed(images_or_sizes)]
    if not asked:
        return []
    return _shelf.knowledge(processor, options).answers(asked)


def geometry_source(processor: Any, **options: Any) -> str:
    """Say in words where the geometry of an RGB image of 480 by 640 pixels comes from.

    Raises:
        Exception: what the processor raises, if it refuses everything.
    """
    return _shelf.knowledge(processor, options).source(_Asked.of((480, 640)))


@dataclass(frozen=True)
class _Asked:
    """One image, or a size in its place."""

    trait: Trait
    size: tuple[int, ...]
    source: Any = None

    @classmethod
    def of(cls, given: Any) -> "_Asked":
        if kind_of(given) in ("image", "array", "tensor") and not _is_size(given):
            return cls(trait_of(given), size_of(given), given)
        if _is_size(given):
            height, width = (int(side) for side in given)
            return cls(image_trait("RGB", width, height), (width, height))
        raise BadArgument("images_or_sizes", given, "images (PIL, arrays, tensors), or sizes (height, width) above 0")

    @property
    def key(self) -> tuple[Trait, tuple[int, ...]]:
        return self.trait, self.size

    @property
    def area(self) -> int:
        first, second = self.size[-2:] if self.trait[0] != "image" else self.size
        return first * second

    @property
    def slenderness(self) -> float:
        return self.size[0] / self.size[-1] if self.trait[0] == "image" else 0.0

    def picture(self) -> Any:
        """Return the image, or a black one of its size."""
        if self.source is not None:
            return self.source
        from PIL import Image

        return Image.new("RGB", (self.size[0], self.size[1]))

    def sample(self) -> Any:
        """Return the image, or a small one of its trait."""
        return (
            self.source
            if self.source is not None
            else replace(self, size=(min(self.size[0], 8), min(self.size[1], 8))).picture()
        )


def _is_size(given: Any) -> bool:
    if not isinstance(given, list | tuple) and getattr(given, "shape", None) != (2,):
        return False
    return len(given) == 2 and all(_is_side(side) for side in given)


def _is_side(side: Any) -> bool:
    return not isinstance(side, bool) and hasattr(side, "__index__") and int(side) > 0


def _listed(images_or_sizes: Any) -> Sequence[Any]:
    # One image or one size is a mistake that would otherwise be taken for a list of rows, or of two numbers.
    if isinstance(images_or_sizes, str | bytes) or not hasattr(images_or_sizes, "__iter__"):
        raise BadArgument("images_or_sizes", images_or_sizes, "a list of images or sizes")
    listed = list(images_or_sizes)
    if listed and all(_is_side(entry) for entry in listed):
        raise BadArgument("images_or_sizes", images_or_sizes, "a list of sizes: [(height, width)]")
    return listed


@dataclass
class _Trust:
    """What pictures of one trait have shown, and between which areas and proportions of theirs."""

    steady: bool
    without_pixels: bool
    own_method: bool
    areas: tuple[int, int]
    slenderness: tuple[float, float]

    @property
    def shown(self) -> bool:
        """Whether any picture of this trait was taken."""
        return self.areas[0] <= self.areas[1]

    def reaches(self, asked: _Asked) -> bool:
        low, high = self.areas
        slim, wide = self.slenderness
        return low <= asked.area <= high and slim <= asked.slenderness <= wide

    def stretch(self, asked: _Asked) -> None:
        self.areas = min(self.areas[0], asked.area), max(self.areas[1], asked.area)
        self.slenderness = min(self.slenderness[0], asked.slenderness), max(self.slenderness[1], asked.slenderness)


class _Knowledge:
    """What was learned about one processor with some options; one caller at a time."""

    def __init__(self, processor: Any, options: dict[str, Any]) -> None:
        self._observer = Observer(processor, options)
        self._trusts: dict[Trait, _Trust] = {}
        self._sizes: cachetools.LRUCache[Any, Geometry | None] = cachetools.LRUCache(_MOST_SIZES)
        self._lock = threading.Lock()

    def answers(self, asked: Sequence[_Asked]) -> list[Geometry | None]:
        with self._lock:
            self._try_extremes(asked)
            found = {}
            answers = []
            for one in asked:
                steady = self._trust(one).steady
                if not steady or one.key not in found:
                    found[one.key] = self._answer(one)
                answers.append(copy.deepcopy(found[one.key]))
            if not any(answers):
                self._raise_if_refused(asked)
        return answers

    def _raise_if_refused(self, asked: Sequence[_Asked]) -> None:
        """Raise what the processor raises if it takes neither small pictures nor those that were asked for."""
        if any(self._trust(one).shown for one in asked):
            return
        failure: Exception | None = None
        for one in list({one.key: one for one in asked}.values())[:_MOST_REFUSED]:
            if one.source is None and one.area > _MOST_PIXELS:
                return
            try:
                self._observer.observed(one.picture())
            except Exception as error:  # noqa: BLE001 - raised below, unless another picture is taken
                failure = failure or error
            else:
                return
        if failure is not None:
            raise failure

    def source(self, asked: _Asked) -> str:
        self.answers([asked])
        trust = self._trust(asked)
        tokens = ", tokens from its own method" if trust.own_method else ""
        if trust.without_pixels:
            return f"the processor, run on pictures without pixels{tokens}"
        return f"pixels, once for each size{tokens}" if trust.steady else "the pixels of each image"

    def _answer(self, asked: _Asked) -> Geometry | None:
        trust = self._trust(asked)
        if trust.steady and asked.key in self._sizes:
            return self._sizes[asked.key]
        answer = self._without_pixels(asked, trust) if trust.reaches(asked) else None
        if answer is None:
            answer = self._processed(asked, trust)
        if trust.steady:
            self._sizes[asked.key] = answer
        return answer

    def _without_pixels(self, asked: _Asked, trust: _Trust) -> Geometry | None:
        """Return what the ways that were tried tell about a size, if they do."""
        tokens = self._observer.own_tokens(asked.size) if trust.own_method else None
        if trust.without_pixels:
            return self._observer.without_pixels(asked.trait, asked.size, tokens)
        # An image can still be processed, and tell everything.
        return {"num_tokens": tokens} if tokens is not None and asked.source is None else None

    def _processed(self, asked: _Asked, trust: _Trust) -> Geometry | None:
        if asked.source is None and (not trust.steady or asked.area > _MOST_PIXELS):
            return None
        return self._observer.attempted(asked.picture())

    def _trust(self, asked: _Asked) -> _Trust:
        if asked.trait not in self._trusts:
            self._trusts[asked.trait] = self._try(asked)
        return self._trusts[asked.trait]

    def _try(self, asked: _Asked) -> _Trust:
        """Try both ways on small pictures."""
        probes = [_Asked.of(probe) for probe in probes_like(asked.sample())]
        real = [(probe, self._observer.attempted(probe.source)) for probe in probes]
        shown = [(probe, geometry) for probe, geometry in real if geometry is not None]
        if not shown:
            return _Trust(False, False, False, (1, 0), (1.0, 0.0))
        steady = all(geometry == other for p, geometry in shown for q, other in shown if p.size == q.size)
        trust = _Trust(
            steady, steady, steady and asked.trait[0] == "image" and all("num_tokens" in g for _, g in shown),
            (shown[0][0].area, shown[0][0].area), (shown[0][0].slenderness, shown[0][0].slenderness),
        )  # fmt: skip
        for probe, geometry in shown:
            self._compare(trust, probe, geometry)
        return trust

    def _compare(self, trust: _Trust, tried: _Asked, real: Geometry) -> None:
        """Believe no way any more that tells something else than a real picture shows."""
        if trust.own_method:
            tokens = self._observer.own_tokens(tried.size)
            trust.own_method = tokens is not None and tokens == real["num_tokens"]
        if trust.without_pixels:
            trust.without_pixels = self._observer.without_pixels(tried.trait, tried.size, None) == real
        trust.stretch(tried)

    def _try_extremes(self, asked: Sequence[_Asked]) -> None:
        """Stretch what is trusted to the sizes that are asked for: to the largest, smallest, widest and tallest."""
        for trait in dict.fromkeys(one.trait for one in asked):
            group = [one for one in asked if one.trait == trait and one.area <= _MOST_PIXELS]
            for measure in (operator.attrgetter("area"), operator.attrgetter("slenderness")):
                ordered = sorted(group, key=measure)
                self._try_first(ordered[:_MOST_REFUSED])
                self._try_first(ordered[: -_MOST_REFUSED - 1 : -1])

    def _try_first(self, extremes: Sequence[_Asked]) -> None:
        """Try the first of these sizes that the processor does not refuse."""
        for extreme in extremes:
            trust = self._trust(extreme)
            if trust.reaches(extreme) or not (trust.without_pixels or trust.own_method):
                return
            real = self._observer.attempted(extreme.picture())
            if trust.steady:
                self._sizes[extreme.key] = real
            if real is not None:
                self._compare(trust, extreme, real)
                return


class _Shelf:
    """What was learned in this process, under the state that it is true for, with the Processor that it is about."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        renew_in_children(self)

    def after_fork_in_child(self) -> None:
        # All is learned anew: a thread of the parent may have been in the middle of it.
        self.known: cachetools.LRUCache[bytes, tuple[_Knowledge, weakref.ref[Any]]] = cachetools.LRUCache(_MOST_KNOWN)
        self._lock = threading.Lock()

    def knowledge(self, processor: Any, options: dict[str, Any]) -> _Knowledge:
        """Return what is known about a processor as it is now, with these options."""
        plain = plain_with_images(processor)
        state = _state(processor, plain, options)
        if state is None:
            return _Knowledge(plain, options)
        with self._lock:
            knowledge, owner = self.known.get(state, (None, None))
            # A Processor is known by its ``id``, which is another's once it is gone.
            gone = owner is not None and owner() is not processor and not takes_images(type(plain))
            if knowledge is None or gone:
                knowledge = _Knowledge(plain, options)
                self.known[state] = knowledge, weakref.ref(processor)
        return knowledge


_shelf = _Shelf()


def _state(processor: Any, plain: Any, options: dict[str, Any]) -> bytes | None:
    """Return everything that what is learned depends on; None if that has no exact encoding."""
    try:
        if takes_images(type(plain)):
            return encode((describe_processor(plain, options), options))
        own = {name: value for name, value in vars(plain).items() if _is_encodable(value)}
        words = len(plain.tokenizer) if hasattr(plain, "tokenizer") else 0
        return encode((id(processor), own, words, describe_processor(plain.image_processor, {}), options))
    except (NotEncodable, NotIdentifiable, RefusedOptions):
        return None


def _is_encodable(value: Any) -> bool:
    try:
        encode(value)
    except NotEncodable:
        return False
    return True
