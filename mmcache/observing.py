"""Observing a processor: what its outputs are like for one picture, with pixels, without them, or by its own word."""

import copy
from collections.abc import Mapping
from typing import Any

from mmcache.flight import computing
from mmcache.layout.geometry import filled, outline, summary
from mmcache.layout.probes import Trait
from mmcache.randomness import random_states
from mmcache.wrapping import takes_images

# Each output's integers as nested lists, or the shape of its pixels; for a Processor also "num_tokens".
Geometry = dict[str, Any]

# Texts that a Processor may want beside an image in whose geometry they have no say; the second is none.
_ANY_TEXTS: tuple[dict[str, str], ...] = ({"text": "a"}, {}, {"text": "<image>"})

# What changes values and no shapes: where it can be turned off, a run without pixels takes half the time.
_VALUES_ONLY = ("do_rescale", "do_normalize")


class Observer:
    """A plain processor with the options of a call, ready to be shown one picture at a time."""

    def __init__(self, processor: Any, options: Mapping[str, Any]) -> None:
        """``processor`` is a ``Processor`` or image processor without a cache; what it becomes later is not seen."""
        alone = takes_images(type(processor))
        image_processor = copy.deepcopy(processor if alone else processor.image_processor)
        image_processor.__class__ = _recording(type(image_processor))
        self._image_processor: Any = image_processor
        self._processor: Any = None if alone else copy.copy(processor)
        if self._processor is not None:
            self._processor.image_processor = image_processor
        self.counts_tokens = not alone
        token = getattr(self._processor, "image_token", None)
        placeholder = getattr(token, "content", token)  # it may be an AddedToken
        self._placeholder = placeholder if isinstance(placeholder, str) else None
        self._texts = ({"text": placeholder}, *_ANY_TEXTS) if isinstance(placeholder, str) else _ANY_TEXTS
        self._options = dict(options)
        self._arriving: dict[str, Any] = dict(options)
        self._placeholder_was_tried = False

    def attempted(self, picture: Any) -> Geometry | None:
        """Return what a picture's outputs are like; None if the processor refuses it."""
        try:
            return self.observed(picture)
        except Exception:  # noqa: BLE001 - a refusal is the processor's right, and an answer
            return None

    def observed(self, picture: Any) -> Geometry:
        """Return what a picture's outputs are like, having processed it; raise what the processor raises.

        The random generators are left as they were.
        """
        before = random_states()
        try:
            with computing():
                return self._expanded(picture) if self._processor is not None else self._alone(picture)
        finally:
            if random_states() != before:
                before.restore()

    def without_pixels(self, trait: Trait, size: tuple[int, ...], tokens: int | None) -> Geometry | None:
        """Return what the processor makes of a picture that has a size only; None if it has to look into it.

        ``tokens``, where it is known already, saves the expansion of a text.
        """
        picture = _without_pixels(trait, size)
        if tokens is None:
            return self.attempted(picture)
        try:
            with computing():
                return {**self._alone(picture), "num_tokens": tokens}
        except Exception:  # noqa: BLE001 - as for a real picture
            return None

    def own_tokens(self, size: tuple[int, ...]) -> int | None:
        """Return how many tokens the processor's own method says that an image (width, height) takes, if it has one.

        It is not asked with options: in transformers 4.57 it writes them into the defaults of its class.
        """
        method = getattr(self._processor, "_get_num_multimodal_tokens", None)
        if method is None or self._options:
            return None
        try:
            (tokens,) = method(image_sizes=[(size[1], size[0])]).num_image_tokens
            return int(tokens)
        except Exception:  # noqa: BLE001 - a helper that fails tells nothing, like one that is not there
            return None

    def _alone(self, picture: Any) -> Geometry:
        options = {**copy.deepcopy(self._arriving), **self._shapes_only(picture), "return_tensors": "pt"}
        geometry = summary(outline(self._image_processor([picture], **options)))
        return {**geometry, "num_tokens": None} if self.counts_tokens else geometry

    def _shapes_only(self, picture: Any) -> dict[str, bool]:
        if not getattr(picture, "is_meta", False):
            return {}
        names = getattr(self._image_processor, "_valid_kwargs_names", ())
        return dict.fromkeys([name for name in _VALUES_ONLY if name in names], False)

    def _expanded(self, picture: Any) -> Geometry:
        """Have the Processor expand one placeholder; note what its image processor is given, and gives.

        Of a text that it does not take only the image's part counts; where nothing comes of any text that is known
        here, its error for the first is raised.
        """
        failure: Exception | None = None
        for text in self._texts:
            seen, tokens, error = self._shown(text, picture)
            if not seen or (output := seen[-1].get("output")) is None:
                failure = failure or error
                continue
            self._texts = (text,)
            self._arriving = seen[-1]["given"]
            return {**summary(output), "num_tokens": self._trusted(tokens, text, picture)}
        assert failure is not None, "there are texts"
        raise failure

    def _shown(self, text: dict[str, str], picture: Any) -> tuple[list[dict[str, Any]], int, Exception | None]:
        """Return what the image processor was given and gave, how many placeholder tokens came out, and an error."""
        seen: list[dict[str, Any]] = []
        vars(self._image_processor)["_mmcache_seen"] = seen
        options = {**copy.deepcopy(self._options), "return_tensors": "pt"}
        try:
            inputs = self._processor(images=[picture], **text, **options)
            return seen, self._image_tokens(inputs["input_ids"].tolist()), None
        except Exception as error:  # noqa: BLE001 - sorted out by the caller
            return seen, 0, error
        finally:
            del vars(self._image_processor)["_mmcache_seen"]

    def _trusted(self, tokens: int, text: dict[str, str], picture: Any) -> int | None:
        """Return a number of tokens that one placeholder gave; None if there is none, or it is not the placeholder's."""
        if not tokens or text.get("text") != self._placeholder:
            return None
        if not self._placeholder_was_tried:
            self._placeholder_was_tried = True
            # Some put tokens of their own before a text that has none; others do so always, and then this is one too many.
            if self._shown(_ANY_TEXTS[0], picture)[1] not in (0, tokens):
                self._placeholder = None
                return None
        return tokens

    def _image_tokens(self, samples: list[list[int]]) -> int:
        ids = getattr(self._processor, "image_token_ids", None) or [getattr(self._processor, "image_token_id", None)]
        return sum(token in ids for sample in samples for token in sample)


def _recording(plain: type) -> type:
    """Make the class of an image processor that notes, where it is asked to, its options and outputs without pixels."""

    def preprocess(self: Any, images: Any, *args: Any, **given: Any) -> Any:
        seen = vars(self).get("_mmcache_seen")
        if seen is None:
            return plain.preprocess(self, images, *args, **given)  # type: ignore[attr-defined]
        seen.append({"given": given})
        output = plain.preprocess(self, images, *args, **{**given, "return_tensors": "pt"})  # type: ignore[attr-defined]
        seen[-1]["output"] = outline(output)
        # A Processor may read its image processor's outputs as numbers, even where it needs their shapes only.
        return filled(output)

    # Marked as mmcache's own, so that an installation leaves it alone.
    return type(plain)(plain.__name__, (plain,), {"preprocess": preprocess, "__mmcache_plain__": plain})


def _without_pixels(trait: Trait, size: tuple[int, ...]) -> Any:
    """Return a tensor on the ``meta`` device: of an array's or tensor's shape, or RGB for an image (width, height)."""
    import torch

    if trait[0] == "image":
        # Floats, since whole numbers are rounded and clamped on their way, which takes most of the time here.
        return torch.empty((3, size[1], size[0]), dtype=torch.float32, device="meta")
    dtype = getattr(torch, trait[1].removeprefix("torch."), torch.uint8)
    return torch.empty(size, dtype=dtype, device="meta")
