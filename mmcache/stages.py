"""Two stages of an engine: `Stages.add` when a request comes in, `Stages.execute` when the model runs.

The first stage needs to know how many tokens an image takes, the second one its pixels; an engine that asks the
processor both times does the work twice. A ticket links the two: it names the item, pins it until it is used, and
carries the source, so that it can always be redeemed, here or in another process.
"""

import asyncio
import copy
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import cachetools

from mmcache.cache import Cache
from mmcache.errors import BadArgument
from mmcache.fingerprints import encode
from mmcache.forks import renew_in_children
from mmcache.layout.book import PATIENCE_SECONDS
from mmcache.layout.geometry import filled, outline, summary
from mmcache.layout.probes import size_of, trait_of
from mmcache.layout.verdict import Verdict
from mmcache.processing import ImageCall, ProcessorCall
from mmcache.processwide import default_cache
from mmcache.tickets import Execution, Placeholder, Request, Ticket
from mmcache.wrapping import plain_with_images, takes_images

Pixels = Literal["eager", "now", "lazy"]
_StandIn = Callable[[Any, dict[str, Any]], Any]

# Sizes with their options that are remembered: a few hundred bytes each, and traffic has far fewer distinct ones.
_MOST_GEOMETRIES = 4096


class Stages:
    """The two stages for one processor.

    Args:
        processor: a Hugging Face ``Processor`` or image processor, wrapped or not.
        cache: where items are kept; None is the process-wide cache.
        pixels: when an image is processed. ``"eager"``: on a pool of threads, `add` returns as soon as the geometry
            is known. ``"now"``: before `add` returns. ``"lazy"``: when it is executed; if the source was changed in
            between, `execute` raises `SourceChanged`. An image whose geometry is not known is always processed at
            once.
        carry_source: whether a ticket takes its source to another process. Without, it is under 1 KB, and raises
            `ItemGone` where its item is not.
        workers: threads for eager processing. Default: one for each core, at most 4.

    Raises:
        BadArgument: an argument is not accepted.
    """

    def __init__(
        self,
        processor: Any,
        *,
        cache: Cache | None = None,
        pixels: Pixels = "eager",
        carry_source: bool = True,
        workers: int | None = None,
    ) -> None:
        """Start without threads; see the class."""
        if pixels not in ("eager", "now", "lazy"):
            raise BadArgument("pixels", pixels, '"eager", "now" or "lazy"')
        if workers is not None and (not isinstance(workers, int) or workers < 1):
            raise BadArgument("workers", workers, "a number of threads, 1 or more")
        plain = plain_with_images(processor)
        self._processor: Any = None if takes_images(type(plain)) else plain
        # A copy through and through: what somebody changes in place must not reach images that wait to be processed.
        self._image_processor: Any = copy.deepcopy(plain if self._processor is None else plain.image_processor)
        self._made_by = type(self._image_processor).__qualname__
        self._cache = cache if cache is not None else default_cache()
        if not isinstance(self._cache, Cache):
            raise BadArgument("cache", cache, "an mmcache.Cache, or None for the process-wide one")
        self._pixels, self._carry_source = pixels, carry_source
        self._workers = workers or min(4, os.cpu_count() or 1)
        self._geometries: cachetools.LRUCache[bytes, Any] = cachetools.LRUCache(_MOST_GEOMETRIES)
        self._stand_in_class = _stand_in_class(type(self._image_processor))
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        renew_in_children(self)

    def add(self, image: Any, **options: Any) -> Ticket:
        """Take in one image with the options of its processor; return its ticket, with its geometry.

        Raises what the processor raises for the image. ``image`` is whatever the processor takes for one image.
        """
        if isinstance(image, list | tuple):
            accepted = "one image, not a list: add each by itself, or take add_request for a request with several"
            raise BadArgument("image", type(image), accepted)
        placeholder = getattr(self._processor, "image_token", None)
        if isinstance(placeholder, str):
            # Through the Processor, which may override options of its image processor with defaults of its own.
            return self.add_request(placeholder, [image], **options).tickets[0]
        return self._through_any_text(image, options) if self._processor is not None else self._alone(image, options)

    def _alone(self, image: Any, options: dict[str, Any]) -> Ticket:
        return self._tickets([image], options)[0][0]

    def _through_any_text(self, image: Any, options: dict[str, Any]) -> Ticket:
        """Take in an image of a Processor whose text does not name it, but whose options are not all the image's."""
        try:
            (ticket,) = self.add_request("a", [image], **options).tickets
        except Exception:  # noqa: BLE001 - a Processor that takes no such text; what is wrong with the image comes up here
            return self._alone(image, options)
        ticket.num_tokens = None
        return ticket

    def add_request(self, text: Any, images: Any = None, **options: Any) -> Request:
        """Take in the text and images of one request; return token ids with expanded placeholders, and tickets.

        Needs a ``Processor``, which is called as it is (its defaults and checks included), but with images' geometry
        in place of their pixels. ``options`` are those of the processor's call.

        Raises:
            BadArgument: these stages have an image processor only.
            Exception: what the processor raises.
        """
        if self._processor is None:
            raise BadArgument("processor", type(self._image_processor).__name__, "a Processor, with a tokenizer")
        tickets: list[Ticket] = []
        outlines: list[Any] = []

        def stand_in(images: Any, given: dict[str, Any]) -> Any:
            added, taken_out, output = self._tickets(images if isinstance(images, list | tuple) else [images], given)
            tickets.extend(added)
            outlines.extend(taken_out)
            return output

        inputs = self._expanded(text, images, stand_in, **options)
        for ticket, outlined in zip(tickets, outlines, strict=True):
            ticket.num_tokens = self._num_tokens(inputs if len(tickets) == 1 else None, ticket, outlined, options)
        for name in {name for ticket in tickets for name in ticket.geometry} & set(inputs):
            del inputs[name]
        return Request(inputs, tickets, self._placeholders(inputs, tickets))

    def execute(self, tickets: Iterable[Ticket], *, device: Any = None, dtype: Any = None) -> Any:
        """Return the outputs of these tickets' images as one batch, in this order, in fresh memory.

        It is what the image processor gives for a list of the images with ``return_tensors="pt"``, each image with
        the options that it was added with; moved to ``device``, real tensors cast to ``dtype``.

        Raises:
            SourceChanged: an image was changed since it was added, before it was processed.
            ItemGone: a ticket came without its source, and its item is not here.
            NotJoinable: images with different options, of a processor whose batches cannot be joined.
            Exception: what the processor raises.
        """
        batch = [] if isinstance(tickets, Ticket) else list(tickets)
        if not batch or not all(isinstance(ticket, Ticket) for ticket in batch):
            raise BadArgument("tickets", tickets, "a list of one or more tickets")
        if others := {ticket.made_by for ticket in batch} - {self._made_by}:
            raise BadArgument("tickets", f"tickets of {sorted(others)}", f"tickets of stages with a {self._made_by}")
        execution = Execution(self.call, self._cache, batch, self._forget_geometry, dtype=dtype, device=device)
        output = self._cache.serve(execution)
        for ticket in batch:
            ticket.release()
        return output

    async def aadd(self, image: Any, **options: Any) -> Ticket:
        """`add` in a thread, for an event loop."""
        return await asyncio.to_thread(self.add, image, **options)

    async def aadd_request(self, text: Any, images: Any = None, **options: Any) -> Request:
        """`add_request` in a thread, for an event loop."""
        return await asyncio.to_thread(self.add_request, text, images, **options)

    async def aexecute(self, tickets: Iterable[Ticket], *, device: Any = None, dtype: Any = None) -> Any:
        """`execute` in a thread, for an event loop."""
        return await asyncio.to_thread(self.execute, tickets, device=device, dtype=dtype)

    def close(self) -> None:
        """Wait for eager work that has begun, drop what has not, and end the threads. Tickets stay valid."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "Stages":
        """Return the stages, to be closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Show the image processor's class and the cache."""
        return f"Stages({self._made_by}, cache={self._cache}, pixels={self._pixels!r})"

    def after_fork_in_child(self) -> None:
        """Forget the pool, whose threads are not in the child, and a lock that one of them may hold."""
        self._pool = None
        self._lock = threading.Lock()
        self._geometries = cachetools.LRUCache(_MOST_GEOMETRIES)

    def call(self, images: Any, options: dict[str, Any]) -> ProcessorCall:
        """Return a call of the plain image processor; outputs are always tensors."""
        processor, tensors = self._image_processor, {**copy.deepcopy(options), "return_tensors": "pt"}
        return ProcessorCall(
            self._cache, processor, type(processor).preprocess, (images,), tensors, patience=PATIENCE_SECONDS
        )

    def _tickets(self, images: Any, options: dict[str, Any]) -> tuple[list[Ticket], list[Any], Any]:
        """Return tickets for a list of images, what is known of each one's outputs, and their batch without pixels."""
        call = self.call(images, options)
        failure: Exception
        try:
            parts = [ImageCall(call, position, key) for position, key in enumerate(call.keys())]
            outlines = [self._outlined(part) for part in parts]
            whole = filled(call.joined(outlines))
            tickets = [
                self._ticket(part.key, part.source, options, outlined, call)
                for part, outlined in zip(parts, outlines, strict=True)
            ]
            if self._pixels == "eager":
                self._start(tickets)
        except Exception as error:  # noqa: BLE001 - law 3: what is not the caller's ends in the plain call
            failure = error
        else:
            return tickets, outlines, whole
        self._cache.settle_failure(call, failure)
        return self._plain_tickets(call, images, options)

    def _plain_tickets(self, call: ProcessorCall, images: Any, options: dict[str, Any]) -> tuple[Any, list[Any], Any]:
        """Return tickets without a key, for images that only the plain processor can serve."""
        output = call.plain()
        sources = [i for image in images for i in (image if isinstance(image, list | tuple) else [image])]
        outlines = [outline(self.call([s], options).plain() if len(sources) > 1 else output) for s in sources]
        tickets = [self._ticket(None, s, options, o, None) for s, o in zip(sources, outlines, strict=True)]
        return tickets, outlines, output

    def _ticket(
        self, key: bytes | None, source: Any, options: dict[str, Any], outlined: Any, call: ProcessorCall | None
    ) -> Ticket:
        verdict, identity = (call.verdict, call.identity) if call is not None else (Verdict(), None)
        ticket = Ticket(
            key, source, options, summary(outlined), verdict,
            identity=identity, origin=self._cache.token, carry_source=self._carry_source,
        )  # fmt: skip
        ticket.made_by = self._made_by
        ticket.structures = call.structures if call is not None else ()
        ticket.pin_in(self._cache)
        return ticket

    def _forget_geometry(self) -> None:
        with self._lock:
            self._geometries.clear()

    def _outlined(self, part: ImageCall) -> Any:
        """Return an image's outputs without pixels: remembered for its size, else from its item."""
        # Of this epoch: what was learned before everything was cleared is forgotten with it.
        epoch = self._cache.memory.epoch
        of_size = encode((epoch, part.parent.identity, trait_of(part.source), size_of(part.source)))
        with self._lock:
            known = self._geometries.get(of_size)
        if known is not None and self._pixels != "now" and part.key not in self._cache.memory:
            return known
        outlined = part.outlined(self._cache.items(part)[0])
        if part.parent.verdict.steady_geometry:
            with self._lock:
                self._geometries[of_size] = outlined
        return outlined

    def _start(self, tickets: Sequence[Ticket]) -> None:
        """Process on the pool what is not here yet."""
        waiting = [ticket for ticket in tickets if ticket.key is not None and ticket.key not in self._cache.memory]
        with self._lock:
            if waiting and self._pool is None:
                self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="mmcache-stages")
            for ticket in waiting:
                assert self._pool is not None, "made above"
                self._pool.submit(self._process, weakref.ref(ticket))

    def _process(self, reference: "weakref.ref[Ticket]") -> None:
        """Process a ticket's image, unless nobody holds the ticket any more: the queue keeps no image alive."""
        ticket = reference()
        if ticket is None or ticket.released:
            return
        execution = Execution(self.call, self._cache, [ticket], self._forget_geometry)
        try:
            self._cache.items(execution)
        except Exception as failure:  # noqa: BLE001 - what is the caller's comes up again when the ticket is executed
            with suppress(Exception):
                self._cache.settle_failure(execution, failure)

    def _expanded(self, text: Any, images: Any, stand_in: _StandIn, **options: Any) -> Any:
        """Call the processor with something in the place of its image processor."""
        twin = copy.copy(self._processor)
        twin.image_processor = copy.copy(self._image_processor)
        twin.image_processor.__class__ = self._stand_in_class
        vars(twin.image_processor)["_mmcache_stand_in"] = stand_in
        return twin(text=text, images=images, **{**options, "return_tensors": "pt"})

    def _num_tokens(self, inputs: Any, ticket: Ticket, outlined: Any, options: dict[str, Any]) -> int | None:
        """Count an image's placeholder tokens, in ``inputs`` if it is alone there, else by expanding one placeholder."""
        if inputs is None:
            text = getattr(self._processor, "image_token", None)
            if not isinstance(text, str):
                return None
            inputs = self._expanded(text, [ticket.source], lambda *_: filled(outlined), **options)
        return sum(len(positions) for positions in self._image_tokens(inputs))

    def _image_tokens(self, inputs: Any) -> list[list[int]]:
        """Return the positions of placeholder tokens in each sample."""
        ids = getattr(self._processor, "image_token_ids", None) or [getattr(self._processor, "image_token_id", None)]
        return [[at for at, token in enumerate(sample) if token in ids] for sample in inputs["input_ids"].tolist()]

    def _placeholders(self, inputs: Any, tickets: Sequence[Ticket]) -> list[Placeholder] | None:
        """Tell images apart by their numbers of tokens: in order, each within one sample."""
        samples = [(number, positions) for number, positions in enumerate(self._image_tokens(inputs)) if positions]
        found: list[Placeholder] = []
        for ticket in tickets:
            if not samples or not ticket.num_tokens or ticket.num_tokens > len(samples[0][1]):
                return None
            number, positions = samples[0]
            own, rest = positions[: ticket.num_tokens], positions[ticket.num_tokens :]
            found.append(Placeholder(number, own[0], own[-1] - own[0] + 1, len(own)))
            samples[0:1] = [(number, rest)] if rest else []
        return None if samples else found


def _stand_in_class(plain: type) -> type:
    """Make the class of what stands in for an image processor while its Processor expands a text."""

    def preprocess(self: Any, images: Any, **given: Any) -> Any:
        return self._mmcache_stand_in(images, given)

    # Marked as mmcache's own, so that an installation leaves it alone.
    return type(plain)(plain.__name__, (plain,), {"preprocess": preprocess, "__mmcache_plain__": plain})
