"""The trial: right layouts for real processors, and a verdict with its reason for every nasty one."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import BatchFeature, CLIPImageProcessorPil

import mmcache
from mmcache.layout import Batched, Layout, Nested, Padded, Same
from mmcache.layout.compare import difference
from mmcache.layout.probes import probes_like, trait_of
from mmcache.layout.trial import Calls, Form, try_processor
from mmcache.layout.verdict import Verdict
from mmcache.randomness import random_states
from tests.pictures import counted, picture

SMALL = {"height": 28, "width": 28}
EDGE = {"shortest_edge": 28}

QWEN = {"pixel_values": Batched(), "image_grid_thw": Batched()}
ROWS = {"pixel_values": Batched()}
TILES = {"pixel_values": Padded(0), "image_sizes": Batched()}
SAMPLE = {"pixel_values": Nested(0), "pixel_attention_mask": Nested(0)}
SAMPLES = {"pixel_values": Padded(0), "pixel_attention_mask": Padded(0)}
CROPS = {"pixel_values": Batched(), "num_crops": Batched()}

REAL: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "Qwen2VLImageProcessor": ({"size": {"shortest_edge": 3136, "longest_edge": 50176}}, QWEN, None),
    "CLIPImageProcessor": ({"size": EDGE, "crop_size": SMALL}, ROWS, None),
    "SiglipImageProcessor": ({"size": SMALL}, ROWS, None),
    "LlavaNextImageProcessor": (
        {"size": EDGE, "crop_size": SMALL, "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]}, TILES, None,
    ),
    "Idefics3ImageProcessor": (
        {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}, SAMPLE, SAMPLES,
    ),
    "Gemma3ImageProcessor": ({"size": SMALL}, CROPS, None),
}  # fmt: skip


def images_of(images: Any) -> list[Any]:
    return list(images) if isinstance(images, list | tuple) else [images]


def pixels(image: Any) -> np.ndarray[Any, Any]:
    return np.asarray(image, dtype=np.float32)


def corner(image: Any) -> torch.Tensor:
    """A row of numbers that depends on the whole content and on the size of an image."""
    array = pixels(image)
    return torch.tensor([[float(array.mean()), float(array[0, 0, 0]), float(array.shape[0])]])


def well_behaved(images: Any) -> dict[str, Any]:
    return {"x": torch.cat([corner(image) for image in images_of(images)])}


def verdict(call: Callable[[Any], Any], form: Form = "flat", source: Any = None) -> Verdict:
    return try_processor(Calls(call), source if source is not None else picture(1), form)


# Real processors


@pytest.mark.parametrize("backend", ["", "Pil"], ids=["torchvision", "pil"])
@pytest.mark.parametrize("name", REAL)
def test_real_processors_get_the_layout_that_they_have(name: str, backend: str) -> None:
    options, flat, samples = REAL[name]
    processor = getattr(transformers, name + backend)(**options)
    pictures = [picture(1, 40, 30), picture(2, 97, 64), picture(3, 64, 97)]
    for tensors in ("pt", "np", None):

        def call(images: Any, tensors: str | None = tensors) -> Any:
            return processor(images, return_tensors=tensors)

        assert verdict(call, "one") == Verdict(steady_geometry=True)
        for form, expected in (("flat", Layout(flat)), ("nested", Layout(flat, samples))):
            found = verdict(call, form)  # type: ignore[arg-type]
            assert found == Verdict(layout=expected, steady_geometry=True), (tensors, form)
        # And it holds for pictures that were not tried.
        assert found.layout is not None
        singles = [call([one]) for one in pictures]
        assert difference(call(pictures), found.layout.join(singles)) == ""
        nested = call([[pictures[0]], pictures[1:]])
        assert difference(nested, found.layout.join_nested(singles, [1, 2])) == ""


@pytest.mark.parametrize("options", [{"do_rescale": False, "do_normalize": False}, {"do_normalize": False}])
@pytest.mark.parametrize("name", ["Idefics3ImageProcessor", "Idefics3ImageProcessorPil", "LlavaNextImageProcessor"])
def test_whole_values_of_uint8_get_a_layout_too(name: str, options: dict[str, Any]) -> None:
    processor = getattr(transformers, name)(**REAL[name.removesuffix("Pil")][0])
    found = verdict(lambda images: processor(images, return_tensors="np", **options))
    assert found.served, found.reason
    assert found.layout == Layout(REAL[name.removesuffix("Pil")][1])


@pytest.mark.parametrize(
    "source",
    [
        picture(1, mode="L"), picture(1, mode="RGBA"), picture(1, mode="P"), picture(1, mode="CMYK"),
        np.zeros((20, 30, 3), np.uint8), np.zeros((3, 20, 30), np.uint8), np.zeros((20, 30, 3), np.float32),
        torch.zeros(3, 20, 30), torch.zeros(3, 20, 30, dtype=torch.uint8),
    ],
    ids=lambda source: str(trait_of(source)),
)  # fmt: skip
def test_every_kind_of_source_is_tried_as_what_it_is(source: Any) -> None:
    probes = probes_like(source)
    assert {trait_of(probe) for probe in probes} == {trait_of(source)}
    assert len({str(np.asarray(probe).tobytes()) for probe in probes}) == len(probes)
    options, flat, _ = REAL["CLIPImageProcessor"]
    processor = CLIPImageProcessorPil(**options)
    assert verdict(lambda images: processor(images, return_tensors="pt"), source=source).layout == Layout(flat)


def test_kinds_of_sources_are_told_apart() -> None:
    palettes = [picture(1, mode="P"), picture(1, mode="P")]
    palettes[1].info["transparency"] = 0
    sources = [
        *(picture(1, mode=mode) for mode in ("RGB", "L", "RGBA")), *palettes,
        picture(1, 1, 64), picture(1, 64, 1), picture(1, 64, 3),
        np.zeros((20, 30, 3), np.uint8), np.zeros((20, 30, 4), np.uint8), np.zeros((3, 20, 30), np.uint8),
        np.zeros((20, 30, 3), np.float32), np.zeros((20, 30), np.uint8), torch.zeros(3, 20, 30, dtype=torch.uint8),
    ]  # fmt: skip
    assert len({trait_of(source) for source in sources}) == len(sources)


# Nasty processors


def draws_numpy(images: Any) -> Any:
    return {"x": torch.cat([corner(image) + np.random.rand() for image in images_of(images)])}


def draws_python(images: Any) -> Any:
    return {"x": torch.cat([corner(image) + random.random() for image in images_of(images)])}


def draws_torch(images: Any) -> Any:
    return {"x": torch.cat([corner(image) + torch.rand(1) for image in images_of(images)])}


def draws_for_nothing(images: Any) -> Any:
    torch.rand(1)
    return well_behaved(images)


def draws_in_batches(images: Any) -> Any:
    if len(images_of(images)) > 1:
        random.random()
    return well_behaved(images)


def draws_and_raises(images: Any) -> Any:
    if any(image.size[0] > 500 for image in images_of(images)):
        np.random.rand()
        raise ValueError("too wide")
    return well_behaved(images)


def own_generator(images: Any, rng: Any = random.Random(3)) -> Any:  # noqa: B008 - shared between calls on purpose
    return {"x": torch.cat([corner(image) + rng.random() for image in images_of(images)])}


def neighbours(images: Any) -> Any:
    x = well_behaved(images)["x"]
    return {"x": x - x.mean(0)}


def count(images: Any) -> Any:
    return {"x": well_behaved(images)["x"] / len(images_of(images))}


def order(images: Any) -> Any:
    return {"x": torch.cat([corner(image) + index for index, image in enumerate(images_of(images))])}


def only_in_threes(images: Any) -> Any:
    return {"x": well_behaved(images)["x"] + (len(images_of(images)) >= 3)}


def only_in_sixes(images: Any) -> Any:
    return {"x": well_behaved(images)["x"] + (len(images_of(images)) == 6)}


def picks_the_first(images: Any) -> Any:
    widths = [image.size[0] for image in images_of(images)]
    return {**well_behaved(images), "size": torch.tensor(widths).amax(0) if len(widths) < 6 else widths[0]}


def sorts(images: Any) -> Any:
    x = well_behaved(images)["x"]
    return {"x": x[x[:, 0].argsort()]}


def drops_repeats(images: Any) -> Any:
    unique = {image.tobytes(): image for image in images_of(images)}
    return well_behaved(list(unique.values()))


def pads_at_the_front(images: Any) -> Any:
    rows = [torch.full((1, image.size[0]), 2.0) for image in images_of(images)]
    widest = max(row.shape[1] for row in rows)
    return {"x": torch.cat([torch.nn.functional.pad(row, (widest - row.shape[1], 0)) for row in rows])}


def widest_of_the_batch(images: Any) -> Any:
    width = max(image.size[0] for image in images_of(images))
    return {"x": torch.cat([torch.from_numpy(pixels(i.resize((width, 8)))).mean(2)[None] for i in images_of(images)])}


def names_by_count(images: Any) -> Any:
    return {**well_behaved(images), **({"mask": torch.ones(2)} if len(images_of(images)) > 1 else {})}


def names_by_size(images: Any) -> Any:
    return {**well_behaved(images), **({"big": torch.ones(1)} if images_of(images)[0].size[0] > 100 else {})}


def raises_in_batches(images: Any) -> Any:
    if len(images_of(images)) > 2:
        raise ValueError("two at most")
    return well_behaved(images)


def pads_in_sixes(images: Any) -> Any:
    rows = [torch.full((1, image.size[0]), 2.0) for image in images_of(images)]
    widest = max(row.shape[1] for row in rows)
    if len(rows) < 6 and any(row.shape[1] < widest for row in rows):
        raise ValueError("unequal widths")
    return {"x": torch.cat([torch.nn.functional.pad(row, (0, widest - row.shape[1])) for row in rows])}


def raises_always(images: Any) -> Any:
    raise OSError("no")


def raises_for_small_ones(images: Any) -> Any:
    if any(image.size[0] < 600 for image in images_of(images)):
        raise ValueError("too small")
    return well_behaved(images)


def objects(images: Any) -> Any:
    return {"x": [object() for _ in images_of(images)]}


def on_meta(images: Any) -> Any:
    return {"x": torch.ones(len(images_of(images)), device="meta")}


def lists_differ(images: Any) -> Any:
    return {"x": well_behaved(images)["x"] + isinstance(images, list)}


def calls_before(images: Any, counter: Any = itertools.count()) -> Any:  # noqa: B008 - shared between calls on purpose
    return {"x": well_behaved(images)["x"] + next(counter)}


warm: list[int] = []


def warms_up(images: Any) -> Any:
    warm.append(1)
    return {"x": well_behaved(images)["x"] + (len(warm) > 1)}


def remembers_the_last(images: Any, last: list[Any] = []) -> Any:  # noqa: B006 - shared between calls on purpose
    before = last[-1:]
    last.append(well_behaved(images)["x"])
    return {"x": last[-1] + (before[0].mean() if before else 0)}


class Mutating(CLIPImageProcessorPil):
    """Grows a list of its own at each call, and looks at it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.history: list[int] = []

    def preprocess(self, images: Any, **options: Any) -> Any:
        self.history.append(1)
        output = super().preprocess(images, **options)
        output["pixel_values"] = output["pixel_values"] + len(self.history)
        return output


NASTY: dict[Callable[[Any], Any], str] = {
    draws_numpy: "random",
    draws_python: "random",
    draws_torch: "random",
    draws_for_nothing: "random",
    draws_in_batches: "random",
    draws_and_raises: "random",
    own_generator: "one picture processed twice",
    neighbours: "no layout explains how 'x'",
    count: "no layout explains how 'x'",
    order: "no layout explains how 'x'",
    only_in_threes: "no layout explains how 'x'",
    only_in_sixes: "a batch of 6 and its images alone",
    picks_the_first: "a batch of 6 and its images alone",
    sorts: "no layout explains how 'x'",
    drops_repeats: "no layout explains how 'x'",
    pads_at_the_front: "no layout explains how 'x'",
    widest_of_the_batch: "no layout explains how 'x'",
    names_by_count: "names of the outputs",
    names_by_size: "names of the outputs",
    raises_in_batches: "raises ValueError, its images alone do not",
    pads_in_sixes: "a batch of 6 cannot be joined from its images",
    raises_always: "refused: OSError: no",
    raises_for_small_ones: "refused: ValueError: too small",
    objects: "builtins.object",
    on_meta: "meta",
    lists_differ: "an image alone and in a list of one",
    calls_before: "one picture processed twice",
    warms_up: "one picture processed twice",
    remembers_the_last: "one picture processed twice",
}


@pytest.mark.parametrize("processor", NASTY, ids=lambda processor: processor.__name__)
@pytest.mark.parametrize("form", ["flat", "nested"])
def test_a_nasty_processor_ends_with_a_verdict_that_says_why(processor: Callable[[Any], Any], form: Form) -> None:
    def call(images: Any) -> Any:
        if form == "flat" or not isinstance(images, list):
            return processor(images)
        return processor([image for entry in images for image in (entry if isinstance(entry, list) else [entry])])

    warm.clear()
    before = random_states()
    found = verdict(call, form)
    assert not found.served
    assert found.layout is None
    assert NASTY[processor] in found.reason
    assert random_states() == before, "the generators are not as they were"


ALONE = {
    neighbours,
    count,
    order,
    only_in_threes,
    only_in_sixes,
    widest_of_the_batch,
    raises_in_batches,
    pads_in_sixes,
    names_by_count,
}


@pytest.mark.parametrize("processor", NASTY, ids=lambda processor: processor.__name__)
def test_a_list_of_one_is_served_where_only_batches_are_the_trouble(processor: Callable[[Any], Any]) -> None:
    warm.clear()
    found = verdict(processor)
    batches_only = processor in ALONE | {picks_the_first, sorts, drops_repeats, pads_at_the_front, names_by_size}
    assert found.alone == batches_only
    assert not found.alone or not found.served


def samples_of(images: Any) -> list[list[Any]]:
    nested = isinstance(images, list) and isinstance(images[0], list)
    return images if nested else [[image] for image in images_of(images)]


def company(images: Any) -> Any:
    """Each image knows how many are in its sample."""
    return {"x": torch.cat([corner(i) + len(sample) for sample in samples_of(images) for i in sample])}


def company_beyond_the_sample(images: Any) -> Any:
    x = company(images)["x"]
    return {"x": x + (len(images) if isinstance(images, list) and isinstance(images[0], list) else 1)}


def company_in_fours(images: Any) -> Any:
    return {"x": company(images)["x"] + (len(images_of(images)) == 4 and isinstance(images[0], list))}


def refuses_company(images: Any) -> Any:
    if any(len(sample) > 1 for sample in samples_of(images)):
        raise ValueError("one image in a sample")
    return company(images)


def test_images_that_depend_on_their_sample_are_served_as_whole_samples() -> None:
    found = verdict(company, "nested")
    assert found.layout == Layout({"x": Batched()}, {"x": Batched()}, whole_samples=True)
    assert verdict(company).layout == Layout({"x": Batched()})


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        (company_beyond_the_sample, "no layout explains how 'x'"),
        (company_in_fours, "a nested list of [2, 1, 3, 1] and its images alone"),
        (refuses_company, "a sample alone raises ValueError"),
    ],
)
def test_samples_that_depend_on_each_other_are_not_served(processor: Callable[[Any], Any], reason: str) -> None:
    found = verdict(processor, "nested")
    assert (found.served, found.alone) == (False, False)
    assert reason in found.reason


def draws_in_company(images: Any) -> Any:
    if any(len(sample) > 1 for sample in samples_of(images)):
        random.random()
    return well_behaved([image for sample in samples_of(images) for image in sample])


def rows_of(images: Any) -> Any:
    return {"x": list(company(images)["x"])}


def test_whole_samples_are_not_converted() -> None:
    nested = try_processor(Calls(company, "pt", rows_of), picture(1), "nested")
    assert nested.layout is not None
    assert nested.layout.whole_samples
    assert nested.conversion is None
    assert try_processor(Calls(company, "pt", rows_of), picture(1), "flat").conversion is not None


def test_lists_that_depend_on_how_an_image_is_given_are_not_converted() -> None:
    def lists(images: Any) -> Any:
        return rows_of(images) if isinstance(images, list) else company(images)

    found = try_processor(Calls(company, "pt", lists), picture(1), "flat")
    assert found.served
    assert found.conversion is None


def test_random_numbers_in_samples_are_the_reason() -> None:
    found = verdict(draws_in_company, "nested")
    assert (found.served, found.alone, found.steady_geometry) == (False, False, False)
    assert "random" in found.reason


def test_a_well_behaved_processor_is_served_in_every_form() -> None:
    assert verdict(well_behaved) == Verdict(layout=Layout({"x": Batched()}), steady_geometry=True)
    assert verdict(well_behaved, "one").served


def test_some_refused_sizes_do_no_harm() -> None:
    def call(images: Any) -> Any:
        if any(image.size[0] < 32 for image in images_of(images)):
            raise ValueError("too small")
        return well_behaved(images)

    assert verdict(call).layout == Layout({"x": Batched()})


def test_unequal_sizes_may_be_refused_as_long_as_the_join_refuses_them_too() -> None:
    def call(images: Any) -> Any:
        return {"x": torch.stack([torch.from_numpy(pixels(image)) for image in images_of(images)])}

    found = verdict(call)
    assert found.layout == Layout({"x": Batched()})
    assert found.layout is not None
    with pytest.raises(mmcache.NotJoinable):
        found.layout.join([call(picture(1, 10, 20)), call(picture(1, 20, 10))])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda rows: torch.cat(rows), Batched()),
        (lambda rows: [row[0] for row in rows], Batched()),
        (lambda rows: [row.tolist() for row in rows], Batched()),
        (lambda rows: 3.5, Same()),
        (lambda rows: None, Same()),
        (lambda rows: {"constant": [np.float32("nan")]}, Same()),
    ],
)
def test_every_field_is_found(make: Callable[[Sequence[Any]], Any], field: Any) -> None:
    found = verdict(lambda images: BatchFeature({"x": make([corner(image) for image in images_of(images)])}))
    assert found.layout == Layout({"x": field}), found.reason


@pytest.mark.parametrize("value", [0, 1, -1, 7, float("-inf")])
def test_the_value_of_the_padding_is_found_and_does_not_trouble_other_outputs(value: float) -> None:
    def call(images: Any) -> Any:
        rows = [np.full((1, image.size[0]), 2.0) for image in images_of(images)]
        widest = max(row.shape[1] for row in rows)
        padded = [np.pad(row, ((0, 0), (0, widest - row.shape[1])), constant_values=value) for row in rows]
        masks = [np.full((1, image.size[0], 1), 3, np.uint8) for image in images_of(images)]
        deep = [np.pad(mask, ((0, 0), (0, widest - mask.shape[1]), (0, 0)), constant_values=5) for mask in masks]
        big = np.concatenate([np.full((1, 1), 70_000) for _ in rows])
        return {"a": np.concatenate(padded), "deep": np.concatenate(deep), "big": big}

    assert verdict(call).layout == Layout({"a": Padded(value), "deep": Padded(5), "big": Batched()})


def test_a_bare_tensor_has_a_layout_too() -> None:
    assert verdict(lambda images: well_behaved(images)["x"]).layout == Layout({"": Batched()})


def test_geometry_is_steady_only_where_it_follows_from_the_size() -> None:
    def by_content(images: Any) -> Any:
        return {"x": [torch.ones(1 + int(pixels(image)[0, 0, 0]) % 50) for image in images_of(images)]}

    assert not verdict(by_content, "one").steady_geometry
    assert verdict(well_behaved, "one").steady_geometry


# Random numbers of others


@pytest.mark.parametrize("processor", [well_behaved, draws_python], ids=["drawing nothing", "drawing"])
def test_another_thread_that_draws_is_neither_disturbed_nor_taken_for_the_processor(
    processor: Callable[[Any], Any],
) -> None:
    drawn: list[float] = []
    drawing, stop = threading.Event(), threading.Event()

    def draw() -> None:
        while not stop.is_set():
            drawn.append(random.random())
            drawing.set()

    def call(images: Any) -> Any:
        drawing.clear()
        assert drawing.wait(30)
        return processor(images)

    random.seed(5)
    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert drawing.wait(30)
        found = verdict(call, "one")
    finally:
        stop.set()
        thread.join(30)
    if processor is draws_python:
        assert not found.served
        return
    assert found.served, found.reason
    reference = random.Random(5)
    assert drawn == [reference.random() for _ in drawn], "numbers were drawn twice, or left out"


def test_the_generators_are_as_they_were_after_a_trial_of_a_wrapped_processor() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random_states()
    with mmcache.Cache("64MiB") as cache:
        mmcache.wrap(CLIPImageProcessorPil(), cache)([picture(1), picture(2)])
        cache.settle()
    assert random_states() == before


# The caller's processor


def test_a_trial_leaves_the_callers_processor_as_it_is() -> None:
    with mmcache.Cache("64MiB") as cache:
        processor = mmcache.wrap(Mutating(), cache)
        plain = Mutating()
        for _ in range(3):
            served = processor([picture(1), picture(2)], return_tensors="pt")
            assert difference(plain([picture(1), picture(2)], return_tensors="pt"), served) == ""
            assert processor.history == plain.history
        assert cache.cache_info().hits == 0


def test_a_verdict_against_a_processor_is_a_bypass_with_the_reason() -> None:
    class Random(CLIPImageProcessorPil):
        def preprocess(self, images: Any, **options: Any) -> Any:
            output = super().preprocess(images, **options)
            output["pixel_values"] = output["pixel_values"] + torch.rand(1)
            return output

    with mmcache.Cache("64MiB") as cache:
        processor = mmcache.wrap(Random(), cache)
        torch.manual_seed(3)
        expected = [Random()(picture(1), return_tensors="pt") for _ in range(3)]
        torch.manual_seed(3)
        with counted(CLIPImageProcessorPil) as runs:
            processor_outputs = []
            for _ in range(3):
                processor_outputs.append(processor(picture(1), return_tensors="pt"))
        assert difference(expected, processor_outputs) == ""
        assert runs.images >= 3
        info = cache.cache_info()
        assert (info.bypassed, info.hits, info.items, info.errors) == (3, 0, 0, 0)
        assert any("random numbers" in reason for reason in info.bypass_reasons)


def test_an_image_that_no_probe_can_be_made_of_is_a_verdict() -> None:
    odd = Image.new("LAB", (8, 8))
    with mmcache.Cache("64MiB") as cache:
        processor = mmcache.wrap(CLIPImageProcessorPil(do_convert_rgb=False), cache)
        plain = CLIPImageProcessorPil(do_convert_rgb=False)
        assert difference(plain(odd, return_tensors="pt"), processor(odd, return_tensors="pt")) == ""
        assert cache.cache_info().errors == 0
