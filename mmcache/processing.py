"""One call of an image processor, as the cache sees it: its form, its keys, its trial, and how its items join."""

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from mmcache.cache import Cache
from mmcache.calls import Bypass, ProcessorError, Unshared, processors_own
from mmcache.errors import NotEncodable, NotIdentifiable, NotJoinable, SourceChanged, UnsupportedSource
from mmcache.fingerprints import encode
from mmcache.fingerprints.identity import (
    Description,
    RefusedOptions,
    autocast,
    described,
    has_foreign_code,
    plain_class,
)
from mmcache.flight import computing
from mmcache.items import Item, expanded
from mmcache.layout.book import PATIENCE_SECONDS, Prepare
from mmcache.layout.coding import WITHOUT_LAST_STEPS, Coding
from mmcache.layout.conversion import KINDS
from mmcache.layout.geometry import outline
from mmcache.layout.outcomes import watched
from mmcache.layout.probes import probes_like, stand_in
from mmcache.layout.scaling import scaled_down
from mmcache.layout.trial import Calls, Form, confirmed, try_processor, try_together
from mmcache.layout.verdict import Verdict
from mmcache.randomness import RandomStates, random_states
from mmcache.texts import TextLoader, TextSource, check_kind, loaded, size_of, trait_of


class ProcessorCall:
    """A call of ``preprocess(images, **options)``; ``original`` is the real one, not bound to an object.

    `keys` comes first: it finds out what the other methods need. Of the options there are three kinds: ``_given`` as they
    came, ``_options`` without the images, and ``_made_with``, those that items are made with.
    """

    def __init__(
        self,
        cache: Cache,
        processor: Any,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        *,
        patience: float = PATIENCE_SECONDS,
        refused: str = "",
    ) -> None:
        """Only keep what was given: whatever is wrong with it is the plain processor's to say.

        ``patience`` is how many seconds a trial is waited for; ``refused`` is why nothing can be looked up, or "".
        """
        self._cache, self._processor, self._original = cache, processor, original
        self._args, self._given, self._patience, self._refused = args, options, patience, refused
        images = args[0] if args else options.get("images", options.get("videos"))
        self.images = len(images) if isinstance(images, list | tuple) else 1
        self.single = self.images == 1
        self.form: Form = "one"
        self.sources: list[Any] = []
        self.counts: list[int] = []
        self.verdict = Verdict()
        self.identity = b""
        self.structures: tuple[bytes, ...] = ()
        self._untried: list[tuple[bytes, Prepare]] = []

    def plain(self) -> Any:
        """Run the real processor on everything; the first times, see whether it draws random numbers."""
        before = random_states() if self._untried else None
        with computing():
            output = self._original(self._processor, *self._args, **self._given)
        if before is not None:
            try:
                self._try_later(drew=random_states() != before)
            except Exception as fault:  # noqa: BLE001 - law 3: the output is there
                self._cache.stats.fault(fault)
        return output

    def _try_later(self, *, drew: bool) -> None:
        for structure, prepare in self._untried:
            if drew:
                self._cache.trials.suspect(structure)
            else:
                with contextlib.suppress(Bypass):  # an image given as text whose file is no longer there
                    self._cache.trials.verdict(structure, prepare, patience=0.0)

    def keys(self) -> list[bytes]:
        """Return one key per image; raise `Bypass` for what the trial does not serve or nothing identifies."""
        if self._refused:
            raise Bypass(self._refused)
        if autocast():  # which is a matter of this thread: a trial runs without
            raise Bypass("autocast is on")
        images, self._options = self._bound()
        self._made_with = self._options
        self.form, self.sources, self.counts = arranged(images, TextLoader(self._cache, self._processor).source)
        self.images = len(self.sources)
        self.single = self.form != "nested" and self.images == 1
        description = self._description()
        self.identity = self._identified(description)
        self.verdict = self._tried(description)
        if self.verdict.conversion is not None:
            self._made_with = {**self._options, "return_tensors": None}
            self.identity = self._identified(description.asking_for_lists)
        self._units = self._samples() if self.whole_samples else self.sources
        self._keys = [self.key_of(unit) for unit in self._units]
        return self._keys

    @property
    def whole_samples(self) -> bool:
        """Whether an item is that of a whole sample, since its images depend on each other."""
        return self.form == "nested" and self.verdict.layout is not None and self.verdict.layout.whole_samples

    def _samples(self) -> list[list[Any]]:
        images = iter(self.sources)
        return [[next(images) for _ in range(count)] for count in self.counts]

    @functools.cached_property
    def _metadata(self) -> bool:
        """Whether there is code that may read more of an image than its pixels."""
        try:
            return has_foreign_code(type(self._processor))
        except NotIdentifiable:
            return True

    def key_of(self, source: Any, identity: bytes | None = None) -> bytes:
        """Return the key of an image as it is now, for this call's processor and options or another identity.

        A list stands for a whole sample, whose key is made of its images'.
        """
        if isinstance(source, list):
            return self._cache.hasher.digest(encode(("sample", [self.key_of(image, identity) for image in source])))
        if isinstance(source, TextSource):
            return self._cache.key_of_content(identity or self.identity, source.content.fingerprint)
        try:
            return self._cache.key(identity or self.identity, source, metadata=self._metadata)
        except (UnsupportedSource, NotEncodable) as refused:
            raise Bypass(str(refused)) from None

    def checked(
        self, raw: Any, source: Any, key: bytes, before: RandomStates, changed: SourceChanged | None = None
    ) -> Any:
        """Keep nothing whose key is no longer true: somebody else may have written into the image or the processor.

        Nor what may be random: ``before`` are the random generators when its processing began (others may have drawn: a
        hit is lost, never wrong). ``changed`` is what the caller gets instead of the output if it was the image.
        """
        if random_states() != before:
            if not self.single:  # the plain processor will draw them for the whole batch
                before.restore()
            return Unshared(raw, "random numbers were drawn while an image was processed")
        if self.key_of(source) != key:
            return Unshared(raw, "an image that was changed before it was processed", changed)
        if self._identity_now() != self.identity:
            return Unshared(raw, "a processor, or its surroundings, changed before an image was processed")
        return raw

    def _identity_now(self) -> bytes:
        description = self._description()
        return self._identified(description if self.verdict.conversion is None else description.asking_for_lists)

    def compute(self, position: int) -> Any:
        """Run the real processor on one image or whole sample, in a list of one if the call has a list."""
        unit = loaded(self._units[position])
        before = random_states()
        raw = self.process(unit if self.form == "one" else [unit], self.coding_of(unit), before=before)
        return self.checked(raw, unit, self._keys[position], before)

    def process(
        self, images: Any, coding: Coding | None = None, *, asked: bool = False, before: RandomStates | None = None
    ) -> Any:
        """Run the real processor on these images, for items or (``asked``) with the very options of this call.

        With a coding its last steps are left out and pixels come as codes; for a picture that has none all is done
        anew, from the random generators as they were ``before``.
        """
        if coding is not None:
            # Whatever is wrong with it is the usual call's to say, just below.
            with contextlib.suppress(Exception), processors_own():
                return coding.coded(self._original(self._processor, images, **(self._made_with | WITHOUT_LAST_STEPS)))
            if before is not None and random_states() != before:
                before.restore()
        with processors_own():
            return self._original(self._processor, images, **(self._options if asked else self._made_with))

    def coding_of(self, unit: Any) -> Coding | None:
        """Return how the outputs of an image can be kept as codes."""
        return None if isinstance(unit, list) else self._verdicts[trait_of(unit)].coding

    def given(self, raw: Any) -> Any:
        """Return what `compute` gave for one image as it was asked for, in the same memory where that can be."""
        return converted(expanded(raw), self.verdict)

    def join(self, items: Sequence[Item]) -> Any:
        """Return the output in the form of the call."""
        if self.single:
            return converted(items[0].thaw(), self.verdict)
        return self.joined([converted(item.value, self.verdict) for item in items])

    def stratum(self) -> tuple[tuple[bytes, ...], Hashable | None]:
        """Return the structures of the images, and how many there are, how large together and how nested."""
        if self.single and self.verdict.as_it_came:
            return self.structures, None
        pixels = sum(math.prod(size_of(source)) for source in self.sources)
        return self.structures, (self.images, pixels.bit_length(), self.structures, tuple(self.counts))

    def joined(self, outputs: Sequence[Any]) -> Any:
        """Join the outputs of all images, as `converted` gives them; raise `Bypass` for images that make no batch."""
        if self.verdict.layout is None:
            assert self.single, "only a call with a single image has no layout"
            return outputs[0]
        try:
            if self.whole_samples:
                return self.verdict.layout.join_samples(outputs)
            if self.form == "nested":
                return self.verdict.layout.join_nested(outputs, self.counts)
            return self.verdict.layout.join(outputs)
        except NotJoinable:
            raise Bypass("images whose outputs make no batch, such as unequal sizes") from None

    def _bound(self) -> tuple[Any, dict[str, Any]]:
        if len(self._args) > 1:
            raise Bypass("positional arguments beside images")
        options = dict(self._given)
        if self._args:
            return self._args[0], options
        if "images" not in options:
            raise Bypass("a call without images")
        return options.pop("images"), options

    def _description(self) -> Description:
        try:
            return described(self._processor, self._options)
        except (NotEncodable, NotIdentifiable) as refused:
            raise Bypass(str(refused)) from None
        except RefusedOptions:
            raise Bypass("options that the processor refuses") from None

    def _identified(self, description: Description) -> bytes:
        try:
            return self._cache.hasher.digest(description.encoded)
        except NotEncodable as refused:
            raise Bypass(str(refused)) from None

    def _tried(self, description: Description) -> Verdict:
        """Return the verdict on this structure for every kind of source in the call, if they agree."""
        structure = self._cache.trials.structure(
            self.identity, self.form, lambda: self._cache.hasher.digest(description.structure(self.form))
        )
        kinds = {trait_of(source): source for source in self.sources}
        self.structures = tuple(structure + encode(trait) for trait in kinds)
        self._verdicts = {
            trait: self._verdict(key, functools.partial(self._trial, [source]))
            for key, (trait, source) in zip(self.structures, kinds.items(), strict=True)
        }
        first, *others = self._verdicts.values()
        if any((other.layout, other.conversion) != (first.layout, first.conversion) for other in others):
            raise Bypass("kinds of images that join differently, in one batch")
        if others:
            together = structure + encode(("together", sorted(self.structures)))
            self._verdict(together, functools.partial(self._trial, list(kinds.values()), first))
        return first

    def _verdict(self, structure: bytes, prepare: Prepare) -> Verdict:
        """Return the verdict on a structure, from its trial if there was none; raise `Bypass` if it does not serve."""
        if self._patience > 0 or self._cache.trials.begun(structure):
            verdict = self._cache.trials.verdict(structure, prepare, patience=self._patience)
        else:
            # In the background, a trial begins after a plain run that drew no random numbers (see `plain`).
            self._untried.append((structure, prepare))
            verdict = None
        if verdict is None:
            raise Bypass("its trial is still running")
        if not verdict.served and not (self.single and verdict.alone):
            raise Bypass(f"{plain_class(type(self._processor)).__name__}: {verdict.reason}")
        return verdict

    def _trial(self, kinds: Sequence[Any], apart: Verdict | None = None) -> Callable[[], Verdict]:
        """Return the trial on a copy of the processor, so that the caller's stays as it is.

        That of a kind of source, or of several together, on which ``apart`` is the verdict.
        """
        # It may wait for its turn for a while: no picture of the caller's is to wait with it.
        kinds = [_stand_in(loaded(source)) for source in kinds]
        # Deep, so that nothing that the trial changes in place is the caller's; all of it was encoded, so it can be copied.
        twin, original, options, form = copy.deepcopy(self._processor), self._original, self._options, self.form
        kind = options.get("return_tensors")
        # Where the attribute says something else than None, None is an option that means something.
        convertible = kind in KINDS and getattr(twin, "return_tensors", None) is None

        def run(processor: Any, options: dict[str, Any], images: Any) -> Any:
            with computing():
                return original(processor, images, **options)

        def trial() -> Verdict:
            picture = probes_like(kinds[0])[0]
            small, fewer = scaled_down(twin, options, lambda p, o: watched(lambda images: run(p, o, images))(picture))
            if apart is not None:
                return try_together(functools.partial(run, small, fewer), kinds, form, apart)
            verdict = try_processor(calls_of(small, fewer), kinds[0], form)
            return verdict if small is twin else confirmed(verdict, calls_of(twin, options), kinds[0], form)

        def calls_of(processor: Any, options: dict[str, Any]) -> Calls:
            listing = {**options, "return_tensors": None}
            return Calls(
                functools.partial(run, processor, options),
                kind,
                functools.partial(run, processor, listing) if convertible else None,
                functools.partial(run, processor, options | WITHOUT_LAST_STEPS),
                functools.partial(run, processor, listing | WITHOUT_LAST_STEPS),
            )

        return trial


class ImageCall:
    """One image of a call, processed by itself and perhaps later: its source may have been changed by then."""

    images = 1
    single = True

    def __init__(self, parent: ProcessorCall, position: int, key: bytes) -> None:
        """``key`` is what the parent call gave for the image at ``position``."""
        if parent.whole_samples:
            raise Bypass("an image that depends on the others of its sample")
        self.parent, self.source, self.key = parent, loaded(parent.sources[position]), key

    def plain(self) -> Any:
        """Run the real processor on a list of this image."""
        try:
            with computing():
                return self.parent.process([self.source], asked=True)
        except ProcessorError as own:
            failure = own.error
        raise failure

    def keys(self) -> list[bytes]:
        """Return the key that the image had when it was added."""
        return [self.key]

    def stratum(self) -> None:
        """Nothing is joined here."""

    def compute(self, _: int) -> Any:
        """Run the real processor; keep nothing if the source is no longer what its key says."""
        before = random_states()
        raw = self.parent.process([self.source], self.parent.coding_of(self.source), before=before)
        return self.parent.checked(raw, self.source, self.key, before, source_changed())

    def given(self, raw: Any) -> Any:
        """Return what was computed as it was asked for."""
        return self.parent.given(raw)

    def join(self, items: Sequence[Item]) -> Any:
        """Return the output of a list of this image."""
        return converted(items[0].thaw(), self.parent.verdict)

    def outlined(self, item: Item) -> Any:
        """Return an item's output, as it was asked for, without its pixels."""
        return outline(converted(item.value, self.parent.verdict))


def converted(raw: Any, verdict: Verdict) -> Any:
    """Return an item's output as it was asked for; raise `Bypass` if that cannot be."""
    try:
        return raw if verdict.conversion is None else verdict.conversion.apply(raw)
    except NotJoinable:
        raise Bypass("an image of whose outputs no tensors can be made") from None


def arranged(images: Any, fetched: Callable[[str], Any]) -> tuple[Form, list[Any], list[int]]:
    """Return the form of ``images``, its sources in order, and for nested lists the number per sample.

    Texts (paths, base64, data URLs) are replaced by what ``fetched`` gives for them. Raises `Bypass` for anything else.
    """
    if not isinstance(images, list | tuple):
        return "one", [_source(images, fetched)], []
    if images and not any(isinstance(sample, list | tuple) for sample in images):
        return "flat", [_single(_source(image, fetched)) for image in images], []
    if images and all(isinstance(sample, list | tuple) and sample for sample in images):
        flat = [_single(_source(image, fetched)) for sample in images for image in sample]
        return "nested", flat, [len(sample) for sample in images]
    raise Bypass("an empty list of images, or one of images and lists")


def _source(image: Any, fetched: Callable[[str], Any]) -> Any:
    if type(image) is str:
        return fetched(image)
    check_kind(image)
    return image


def _single(source: Any) -> Any:
    if trait_of(source)[0] != "image" and len(size_of(source)) > 3:
        raise Bypass("a list of arrays that are batches themselves")
    return source


def _stand_in(source: Any) -> Any:
    try:
        return stand_in(source)
    except Exception as error:  # noqa: BLE001 - such as a sparse tensor, or a mode that nothing is converted to
        raise Bypass(f"no small picture can be made like this one: {type(error).__name__}: {error}") from None


def source_changed() -> SourceChanged:
    """Make the error for an image that is not what it was when it was added."""
    return SourceChanged("an image was changed between add and its processing; nothing was stored: add it again")
