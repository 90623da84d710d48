"""Tickets: what the add stage gives for an image, and what their execution is to the cache."""

import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mmcache.cache import Cache
from mmcache.calls import Bypass
from mmcache.errors import ItemGone, NotEncodable, NotJoinable
from mmcache.fingerprints import encode, kind_of
from mmcache.items import Item, copy_tree, destined, expanded, is_tensor
from mmcache.layout.geometry import outline, summary
from mmcache.layout.probes import size_of
from mmcache.layout.verdict import Verdict
from mmcache.processing import ImageCall, ProcessorCall, converted, source_changed


class Ticket:
    """What `Stages.add` gives for one image, and `Stages.execute` redeems for its tensors.

    ``geometry`` holds each output's integers (grids, sizes) as nested lists and each pixel output's shape as a tuple;
    ``num_tokens`` is the number of placeholder tokens in the text, None for a bare image processor. A ticket pins its
    item until it is executed, released or garbage; executed twice it gives equal tensors twice. It travels to other
    processes, with its source unless ``Stages(carry_source=False)``.
    """

    def __init__(
        self,
        key: bytes | None,
        source: Any,
        options: dict[str, Any],
        geometry: dict[str, Any],
        verdict: Verdict,
        *,
        identity: bytes | None,
        origin: bytes,
        carry_source: bool,
    ) -> None:
        """Made by `Stages.add`."""
        self.key, self.source, self.options = key, source, options
        self.geometry, self.verdict = geometry, verdict
        self.num_tokens: int | None = None
        self.made_by = ""
        self.structures: tuple[bytes, ...] = ()
        self.identity, self.origin, self.carry_source = identity, origin, carry_source
        self._let_go: weakref.finalize[Any, Any] | None = None

    def pin_in(self, cache: Cache) -> None:
        """Keep the item in the memory tier, and count the source as kept alive, until `release` or garbage."""
        held = _source_bytes(self.source)
        # First, so that whatever interrupts the rest leaves nothing behind that is pinned for ever.
        self._let_go = weakref.finalize(self, _let_go, cache.memory, self.key, held)
        self._let_go.atexit = False
        cache.memory.hold(held)
        if self.key is not None:
            cache.memory.pin(self.key)

    @property
    def released(self) -> bool:
        """Whether the item may be evicted: after execution, `release`, or a journey."""
        return self._let_go is None or not self._let_go.alive

    def release(self) -> None:
        """Let the item be evicted, for a request that was cancelled. The ticket can still be executed."""
        if self._let_go is not None:
            self._let_go()

    def __getstate__(self) -> dict[str, Any]:
        """Travel without the pin, and without the source if it is not to be carried."""
        state = {name: value for name, value in vars(self).items() if name not in ("_let_go", "structures")}
        # Its item brings what codes need.
        state["verdict"] = replace(self.verdict, coding=None)
        return state if self.carry_source else {**state, "source": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive unpinned."""
        vars(self).update(state, _let_go=None, structures=())

    def __repr__(self) -> str:
        """Show the key's beginning and the number of tokens."""
        return f"Ticket({self.key.hex()[:12] if self.key else 'plain'}, num_tokens={self.num_tokens})"


class Placeholder(NamedTuple):
    """Where an image stands in the token ids: in which sample, from which position, over how many.

    ``num_tokens`` of these positions are placeholder tokens; a processor may put others between them.
    """

    sample: int
    offset: int
    length: int
    num_tokens: int


@dataclass(frozen=True)
class Request:
    """What `Stages.add_request` gives: the text's outputs, and a ticket and a placeholder for each image.

    ``inputs`` is what the processor gives for text and images without the images' own outputs: ``input_ids`` (int64,
    samples by tokens) with expanded placeholders, ``attention_mask`` and the like. ``placeholders`` is None if the
    placeholders could not be told apart.
    """

    inputs: Any
    tickets: list[Ticket]
    placeholders: list[Placeholder] | None


class Execution:
    """The execution of some tickets, as the cache sees it."""

    def __init__(
        self,
        call: Callable[[Any, dict[str, Any]], ProcessorCall],
        cache: Cache,
        tickets: Sequence[Ticket],
        forget_geometry: Callable[[], None],
        *,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        """``call(images, options)`` makes a call of the stages' image processor; ``dtype`` is that of real tensors."""
        self._dtype, self._device = dtype, device
        self._call, self._cache, self._tickets, self._forget_geometry = call, cache, tickets, forget_geometry
        self.images = len(tickets)
        self.single = self.images == 1

    def keys(self) -> list[bytes]:
        """Return the tickets' keys; unless its item is here, a ticket's source must be there and unchanged."""
        return [self._key(ticket) for ticket in self._tickets]

    def _key(self, ticket: Ticket) -> bytes:
        if ticket.key is not None and ticket.origin == self._cache.token and ticket.key in self._cache.memory:
            return ticket.key
        return self._part(ticket).key

    def _part(self, ticket: Ticket) -> ImageCall:
        """Return the call that processes a ticket's source, with the processor as it is now."""
        if ticket.source is None:
            raise ItemGone("a ticket without its source, and its item is not here: add the image again")
        call = self._call([ticket.source], ticket.options)
        (key,) = call.keys()
        self._check_source(ticket, call)
        ticket.verdict = call.verdict
        return ImageCall(call, 0, key)

    def _check_source(self, ticket: Ticket, call: ProcessorCall) -> None:
        """Raise `SourceChanged` if a ticket's source is not what it was; tickets from elsewhere cannot be checked."""
        if ticket.key is not None and ticket.origin == self._cache.token:
            assert ticket.identity is not None, "a ticket with a key has an identity"
            if call.key_of(ticket.source, ticket.identity) != ticket.key:
                raise source_changed()

    def compute(self, position: int) -> Any:
        """Process a ticket's source."""
        ticket = self._tickets[position]
        if ticket.source is None:
            raise Bypass("an item that was evicted just before its use")
        return self._part(ticket).compute(0)

    def given(self, raw: Any) -> Any:
        """Return what was computed for a single ticket as tensors."""
        return self._finished(converted(expanded(self._destined(raw)), self._tickets[0].verdict))

    def join(self, items: Sequence[Item]) -> Any:
        """Join the items as the processor would, having compared them with what their sizes promised."""
        made = [self._destined(item.value) for item in items]
        values = [converted(value, t.verdict) for t, value in zip(self._tickets, made, strict=True)]
        for ticket, value in zip(self._tickets, values, strict=True):
            if summary(outline(value)) != ticket.geometry:
                self._forget_geometry()
                self._cache.stats.warn_once("geometry", "an image's outputs are not what its size promised: %r", ticket)
        whole = converted(copy_tree(made[0]), self._tickets[0].verdict) if self.single else self._joined(values)
        return self._finished(whole)

    def _destined(self, value: Any) -> Any:
        return destined(value, self._dtype, self._device)

    def _finished(self, output: Any) -> Any:
        """Cast and move what is not yet of the dtype or on the device that was asked for."""
        output = output if self._dtype is None else output.to(dtype=self._dtype)
        return output if self._device is None else output.to(device=self._device)

    def stratum(self) -> tuple[tuple[bytes, ...], Hashable | None] | None:
        """Return that of the plain call, where one call gives the same: all sources here, all options equal."""
        tickets = self._tickets
        structures = tickets[0].structures
        alike = structures and all(ticket.source is not None for ticket in tickets)
        if (self.single and tickets[0].verdict.as_it_came) or not alike:
            return None
        if not _all_equal([ticket.options for ticket in tickets]):
            return None
        pixels = sum(math.prod(size_of(ticket.source)) for ticket in tickets)
        return structures, (self.images, pixels.bit_length(), tuple(ticket.structures for ticket in tickets))

    def _joined(self, outputs: Sequence[Any]) -> Any:
        layout = self._tickets[0].verdict.layout
        if layout is None or any(ticket.verdict.layout != layout for ticket in self._tickets):
            raise Bypass("tickets whose images join differently")
        try:
            return layout.join(outputs)
        except NotJoinable:
            raise Bypass("tickets whose outputs make no batch, such as unequal sizes") from None

    def plain(self) -> Any:
        """Have the plain processor do it, with one call if all options are equal."""
        return self._finished(self._plain())

    def _plain(self) -> Any:
        tickets = self._tickets
        calls = [self._call([ticket.source], ticket.options) for ticket in tickets]
        for ticket, call in zip(tickets, calls, strict=True):
            if ticket.source is None:
                raise ItemGone("a ticket without its source, and its item is not here: add the image again")
            self._check_source(ticket, call)
        if self.single or _all_equal([ticket.options for ticket in tickets]):
            return self._call([ticket.source for ticket in tickets], tickets[0].options).plain()
        if (layout := tickets[0].verdict.layout) is None:
            raise NotJoinable(
                "these tickets have different options, and their processor's batches are not joined from single "
                "images: execute them one by one"
            )
        return layout.join([call.plain() for call in calls])


def _all_equal(options: Sequence[dict[str, Any]]) -> bool:
    try:
        return len({encode(given) for given in options}) == 1
    except NotEncodable:
        return False


def _let_go(memory: Any, key: bytes | None, held: int) -> None:
    """Take back a pin and a held source: runs in the garbage collector, so it takes no lock."""
    if key is not None:
        memory.unpin_later(key)
    memory.release_later(held)


def _source_bytes(source: Any) -> int:
    """Return how many bytes a source keeps alive: of an image what Pillow keeps, of a view the whole behind it."""
    if kind_of(source) == "image":
        wide = 1 if source.mode in ("1", "L", "P") else 2 if source.mode.startswith("I;16") else 4
        return int(source.width * source.height * wide)
    if is_tensor(source):
        return int(source.untyped_storage().nbytes())
    base = getattr(source, "base", None)
    return int(getattr(base if base is not None else source, "nbytes", 0))
