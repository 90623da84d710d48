"""The identity of processors: what changes an output changes it, and nothing else does."""

import contextlib
import copy
import functools
import gc
import io
import json
import os
import subprocess
import sys
import timeit
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessor,
    CLIPImageProcessorPil,
    Idefics3ImageProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLImageProcessorPil,
    SiglipImageProcessorPil,
)

import mmcache
from mmcache.errors import NotEncodable, NotIdentifiable
from mmcache.fingerprints import encode
from mmcache.fingerprints import identity as identity_module
from mmcache.fingerprints.identity import (
    RefusedOptions,
    describe_processor,
    described,
    has_foreign_code,
    plain_class,
    surroundings,
)
from mmcache.layout.compare import difference
from tests.corpus.conftest import corpus_folder
from tests.pictures import counted, picture

NAMES = {
    "QPil": Qwen2VLImageProcessorPil,
    "QTv": Qwen2VLImageProcessor,
    "ClipPil": CLIPImageProcessorPil,
    "Image": Image,
}


def identity(processor: Any, **options: Any) -> bytes:
    """What is remembered of earlier calls must be what is made anew."""
    remembered = described(processor, options).encoded
    assert remembered == encode(describe_processor(processor, options))
    return remembered


class Subclass(CLIPImageProcessorPil):
    """The same code under another name."""


class OtherCode(CLIPImageProcessorPil):
    shift = 0

    def preprocess(self, images: Any, **options: Any) -> Any:
        output = super().preprocess(images, **options)
        output["pixel_values"] = output["pixel_values"] + self.shift
        return output


# Pairs measured on real processors


def config_pairs() -> list[dict[str, str]]:
    folder = corpus_folder()
    if folder is None:
        return []
    found: list[dict[str, str]] = json.loads((folder / "pairs.json").read_text())["processor_config_pairs"]
    return found


@pytest.mark.corpus
def test_the_corpus_has_eight_pairs_of_configurations() -> None:
    if corpus_folder() is None:
        pytest.skip("MMCACHE_TEST_DATA names no folder with the corpus")
    assert len(config_pairs()) == 8


@pytest.mark.corpus
@pytest.mark.parametrize("pair", config_pairs(), ids=lambda pair: f"{pair['id']} {pair['why']}")
def test_configurations_are_as_equal_as_their_outputs(pair: dict[str, str]) -> None:
    one, other = (eval(pair[side], dict(NAMES)) for side in "ab")
    assert (identity(one) == identity(other)) == (pair["relation"] == "should_equal"), pair["why"]
    source = picture(1, 80, 64)
    with mmcache.Cache("64MiB") as cache:
        for processor in (one, other):
            served = mmcache.wrap(processor, cache)(source, return_tensors="pt")
            assert difference(processor(source, return_tensors="pt"), served) == "", pair["why"]
        assert cache.cache_info().hits == (pair["relation"] == "should_equal"), pair["why"]
        assert cache.cache_info().bypassed == 0


# What changes an output


def patched_with_wraps() -> Any:
    original = CLIPImageProcessorPil.normalize

    @functools.wraps(original)
    def darker(self: Any, image: Any, *args: Any, **options: Any) -> Any:
        return original(self, image, *args, **options) - 1

    return mock.patch.object(CLIPImageProcessorPil, "normalize", darker)


PATCHES: dict[str, Callable[[], Any]] = {
    "wrapped like the original": patched_with_wraps,
    "a lambda": lambda: mock.patch.object(CLIPImageProcessorPil, "normalize", lambda self, image, *a, **k: image),
    "a method of transformers": lambda: mock.patch.object(
        CLIPImageProcessorPil, "normalize", Idefics3ImageProcessor.resize
    ),
    "on a base class": lambda: mock.patch.object(
        CLIPImageProcessorPil.__mro__[1], "normalize", lambda self, image, *a, **k: image
    ),
    "a class attribute": lambda: mock.patch.object(CLIPImageProcessorPil, "do_normalize", False),
    "an attribute that is new": lambda: mock.patch.object(CLIPImageProcessorPil, "brandnew", 1, create=True),
    "a class attribute, by its type": lambda: mock.patch.object(CLIPImageProcessorPil, "do_normalize", 1),
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_a_class_that_is_patched_is_another_one_and_the_same_again_after_it(patch: Callable[[], Any]) -> None:
    processor = CLIPImageProcessorPil()
    before = identity(processor)
    with patch():
        assert identity(processor) != before
        assert identity(CLIPImageProcessorPil()) != before
    assert identity(processor) == before


@pytest.mark.parametrize("how", ["mock", "autospec", "partialmethod", "callable object"])
def test_a_patch_that_has_no_code_to_follow_is_refused(how: str) -> None:
    class Called:
        def __call__(self, *args: Any, **options: Any) -> Any:
            return args

    made: Any = {
        "mock": lambda: mock.patch.object(CLIPImageProcessorPil, "normalize"),
        "autospec": lambda: mock.patch.object(CLIPImageProcessorPil, "normalize", autospec=True),
        "partialmethod": lambda: mock.patch.object(
            CLIPImageProcessorPil, "normalize", functools.partialmethod(lambda *a, **k: a, 1)
        ),
        "callable object": lambda: mock.patch.object(CLIPImageProcessorPil, "normalize", Called()),
    }[how]
    with made(), pytest.raises((NotIdentifiable, NotEncodable)):
        identity(CLIPImageProcessorPil())


def test_a_method_patched_on_the_object_is_never_served_from_the_cache() -> None:
    with mmcache.Cache("64MiB") as cache:
        plain: Any = CLIPImageProcessorPil()
        processor = mmcache.wrap(plain, cache)
        processor(picture(1))
        original = type(plain).normalize
        processor.normalize = types.MethodType(lambda s, i, *a, **k: original(s, i, *a, **k) * 0, processor)
        for _ in range(2):
            output = processor(picture(1), return_tensors="pt")
            assert not output["pixel_values"].any()
        assert (cache.cache_info().hits, cache.cache_info().bypassed) == (0, 2)


def test_a_patched_class_is_computed_again_by_a_wrapped_processor() -> None:
    with mmcache.Cache("64MiB") as cache:
        processor = mmcache.wrap(CLIPImageProcessorPil(), cache)
        processor(picture(1))
        with patched_with_wraps():
            patched = processor(picture(1), return_tensors="pt")
            assert difference(CLIPImageProcessorPil()(picture(1), return_tensors="pt"), patched) == ""
        with counted(CLIPImageProcessorPil) as runs:
            processor(picture(1))
        assert runs.images == 0, "the unpatched class is known"


@pytest.mark.parametrize(
    "change",
    [
        lambda p: setattr(p, "do_resize", False),
        lambda p: setattr(p, "do_resize", None),
        lambda p: setattr(p, "image_mean", None),
        lambda p: setattr(p, "image_mean", (0.1, 0.2, 0.3)),
        lambda p: setattr(p, "rescale_factor", 1 / 128),
        lambda p: setattr(p, "size", {"shortest_edge": 100}),
        lambda p: setattr(p.size, "shortest_edge", 100),
        lambda p: setattr(p, "a_name_of_my_own", 1),
        lambda p: setattr(p, "a_name_of_my_own", None),
        lambda p: p.crop_size.__setitem__("height", 10) if isinstance(p.crop_size, dict) else setattr(p.crop_size, "height", 10),
    ],
)  # fmt: skip
def test_an_attribute_that_changed_is_another_identity(change: Callable[[Any], None]) -> None:
    processor = CLIPImageProcessorPil()
    before = identity(processor)
    change(processor)
    assert identity(processor) != before


def test_sizes_changed_in_place_are_computed_again() -> None:
    with mmcache.Cache("64MiB") as cache:
        processor: Any = mmcache.wrap(CLIPImageProcessorPil(), cache)
        processor(picture(1))
        processor.size.shortest_edge = 300
        expected = mmcache.unwrap(processor)(picture(1), return_tensors="pt")
        assert difference(expected, processor(picture(1), return_tensors="pt")) == ""
        assert cache.cache_info().hits == 0


class Slotted(CLIPImageProcessorPil):
    __slots__ = ("later",)
    later: int


def test_a_slot_that_is_set_later_is_seen() -> None:
    processor = Slotted()
    before = identity(processor)
    processor.later = 1
    with_one = identity(processor)
    processor.later = 2
    assert len({before, with_one, identity(processor)}) == 3


def test_an_object_that_becomes_one_of_another_class_is_seen() -> None:
    processor = CLIPImageProcessorPil()
    before = identity(processor)
    processor.__class__ = Subclass
    assert identity(processor) != before


def test_what_is_remembered_goes_with_its_processor_and_is_bounded() -> None:
    processor = CLIPImageProcessorPil()
    known = len(identity_module._states)
    for size in range(3 * identity_module._MOST_DESCRIPTIONS):
        identity(processor, size={"shortest_edge": 10 + size})
    assert len(identity_module._states) <= known + 1
    ((_, state),) = [entry for entry in identity_module._states.values() if entry[0]() is processor]
    assert len(state._descriptions) <= identity_module._MOST_DESCRIPTIONS
    number = id(processor)
    del processor, state
    gc.collect()
    assert number not in identity_module._states


def test_what_changes_while_it_is_described_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = CLIPImageProcessorPil()

    def changed_before(*args: Any) -> Any:
        processor.do_rescale = False
        return describe_processor(*args)

    with monkeypatch.context() as patched:
        patched.setattr(identity_module, "describe_processor", changed_before)
        described(processor, {})
    processor.do_rescale = True
    right = identity(processor)
    processor.do_rescale = False
    assert identity(processor) != right


def test_backend_subclass_and_module_are_part_of_the_identity() -> None:
    elsewhere = type("CLIPImageProcessorPil", (CLIPImageProcessorPil,), {"__module__": "somewhere.else"})
    processors = [CLIPImageProcessor(), CLIPImageProcessorPil(), Subclass(), OtherCode(), elsewhere()]
    assert len({identity(processor) for processor in processors}) == len(processors)
    assert [has_foreign_code(type(p)) for p in processors] == [False, False, True, True, True]


def test_a_subclass_with_other_code_and_its_class_attributes_are_told_apart() -> None:
    before = identity(OtherCode())
    with mock.patch.object(OtherCode, "shift", 1):
        assert identity(OtherCode()) != before
    with mock.patch.object(OtherCode, "shift", False):
        assert identity(OtherCode()) != before
    with mmcache.Cache("64MiB") as cache:
        processor = mmcache.wrap(OtherCode(), cache)
        first = processor(picture(1), return_tensors="pt")["pixel_values"]
        with mock.patch.object(OtherCode, "shift", 1):
            assert torch.equal(processor(picture(1), return_tensors="pt")["pixel_values"], first + 1)


def test_a_subclass_that_names_what_has_no_identity_is_a_bypass_that_says_so() -> None:
    lock = mock.Mock()

    class Opaque(CLIPImageProcessorPil):
        def preprocess(self, images: Any, **options: Any) -> Any:
            assert lock is not None
            return super().preprocess(images, **options)

    with mmcache.Cache("64MiB") as cache:
        processor = mmcache.wrap(Opaque(), cache)
        with counted(CLIPImageProcessorPil) as runs:
            processor(picture(1))
            processor(picture(1))
        assert runs.images == 2
        assert (cache.cache_info().bypassed, cache.cache_info().errors) == (2, 0)
        assert any("'lock'" in reason for reason in cache.cache_info().bypass_reasons)


def test_the_surroundings_are_part_of_the_identity() -> None:
    processor = CLIPImageProcessor()
    before = identity(processor)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert identity(processor) != before
    finally:
        torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float64)
    try:
        assert identity(processor) != before
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        assert identity(processor) != before
    assert identity(processor) == before
    assert any(str(part).startswith("transformers 5") or "transformers 4" in str(part) for part in surroundings())


# What changes none


@pytest.fixture(params=[CLIPImageProcessor, CLIPImageProcessorPil, Qwen2VLImageProcessor, Idefics3ImageProcessor])
def processor(request: pytest.FixtureRequest) -> Any:
    return request.param()


def test_a_call_a_copy_and_a_travel_change_no_identity(processor: Any, tmp_path: Any) -> None:
    before = identity(processor)
    processor([picture(1)], return_tensors="pt")
    assert identity(processor) == before
    for twin in (copy.copy(processor), copy.deepcopy(processor), type(processor)(**processor.to_dict())):
        assert identity(twin) == before
    processor.save_pretrained(tmp_path)
    assert identity(type(processor).from_pretrained(tmp_path)) == before
    with mmcache.Cache("16MiB") as cache:
        wrapped = mmcache.wrap(processor, cache)
        assert plain_class(type(wrapped)) is type(processor)
        assert identity(wrapped) == before


IN_A_PROCESS = """
import hashlib, sys
from transformers import CLIPImageProcessor, CLIPImageProcessorPil, Idefics3ImageProcessor, Qwen2VLImageProcessor
from mmcache.fingerprints import encode
from mmcache.fingerprints.identity import describe_processor
import torch
torch.set_num_threads(1)
class Own(CLIPImageProcessorPil):
    modes = {"a", "b", "c", "RGB"}
    def preprocess(self, images, **options):
        assert "x" not in {"q", "w", "e", "r"}
        return super().preprocess(images, **options)
for cls in (CLIPImageProcessor, CLIPImageProcessorPil, Qwen2VLImageProcessor, Idefics3ImageProcessor, Own):
    print(cls.__name__, hashlib.sha256(encode(describe_processor(cls(), {"do_resize": True}))).hexdigest())
"""


def test_the_identity_is_the_same_in_another_process_with_another_hash_seed() -> None:
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS],
        env={**os.environ, "PYTHONHASHSEED": "12"}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    here, threads = io.StringIO(), torch.get_num_threads()
    try:
        with contextlib.redirect_stdout(here):
            exec(compile(IN_A_PROCESS, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        torch.set_num_threads(threads)
    assert there == here.getvalue()
    assert len(there.splitlines()) == 5


def test_a_written_out_default_equals_an_absent_one(processor: Any) -> None:
    names = ["do_resize", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "resample"]
    for name in names:
        assert identity(processor, **{name: getattr(processor, name)}) == identity(processor), name
    assert identity(processor, size=dict(processor.size)) == identity(processor)
    assert identity(processor, do_resize=not processor.do_resize) != identity(processor)


def test_equal_spellings_are_equal_and_others_are_not() -> None:
    clip: Any = CLIPImageProcessorPil()
    same: list[dict[str, Any]] = [
        {"size": 224}, {"size": {"shortest_edge": 224}}, {"size": clip.size}, {"resample": 3}, {"crop_size": 224},
        {"resample": Image.Resampling.BICUBIC}, {"crop_size": {"width": 224, "height": 224}},
        {"image_mean": list(clip.image_mean)}, {"image_mean": tuple(clip.image_mean)},
    ]  # fmt: skip
    assert {identity(clip, **options) for options in same} == {identity(clip)}
    others: list[dict[str, Any]] = [
        {"size": 225}, {"size": {"height": 224, "width": 224}}, {"resample": 2}, {"do_resize": 1},
        {"crop_size": {"width": 223, "height": 224}}, {"image_mean": [0.5, 0.5, 0.5]}, {"return_tensors": "pt"},
        {"return_tensors": "np"},
    ]  # fmt: skip
    assert len({identity(clip, **options) for options in [{}, *others]}) == len(others) + 1


def test_the_order_of_options_does_not_matter() -> None:
    clip: Any = CLIPImageProcessorPil()
    assert identity(clip, size=100, do_resize=True) == identity(clip, do_resize=True, size=100)


def test_an_explicit_none_means_off_and_differs_from_an_absent_option() -> None:
    clip: Any = CLIPImageProcessorPil()
    for name in ("do_resize", "image_mean", "size"):
        assert identity(clip, **{name: None}) != identity(clip), name
    clip.do_center_crop = None
    assert identity(clip, do_center_crop=None) == identity(clip)


class TellsWhatIsGiven(CLIPImageProcessorPil):
    """Brighter where somebody says that it is to resize, which it does anyway."""

    def preprocess(self, images: Any, **options: Any) -> Any:
        output = super().preprocess(images, **options)
        output["pixel_values"] = output["pixel_values"] + ("do_resize" in options)
        return output


def test_code_of_others_may_tell_what_is_given() -> None:
    plain: Any = TellsWhatIsGiven()
    assert identity(plain, do_resize=True) != identity(plain)
    with mmcache.Cache("64MiB", verify_rate=0) as cache:
        wrapped = mmcache.wrap(plain, cache)
        for options in ({}, {"do_resize": True}, {}):
            expected = plain(picture(1), return_tensors="pt", **options)
            assert difference(expected, wrapped(picture(1), return_tensors="pt", **options)) == ""


IN_THE_LIBRARY = """
class Own(CLIPImageProcessorPil):
    def preprocess(self, images, do_normalize=False, **options):
        return super().preprocess(images, do_normalize=do_normalize, **options)
"""


def test_an_option_that_is_not_given_is_what_the_signature_says() -> None:
    names: dict[str, Any] = {"__name__": "transformers.own", "CLIPImageProcessorPil": CLIPImageProcessorPil}
    exec(IN_THE_LIBRARY, names)
    own = names["Own"]()
    assert own.do_normalize
    assert not has_foreign_code(type(own)), "else what is given would count by itself"
    assert identity(own) != identity(own, do_normalize=True)


def test_none_in_the_constructor_differs_from_the_default() -> None:
    assert identity(CLIPImageProcessorPil(image_mean=None)) != identity(CLIPImageProcessorPil()) or (
        CLIPImageProcessorPil(image_mean=None).image_mean == CLIPImageProcessorPil().image_mean
    )


def test_options_that_cannot_be_encoded_or_are_refused_raise() -> None:
    with pytest.raises(NotEncodable):
        identity(CLIPImageProcessorPil(), strange=object())
    with pytest.raises(RefusedOptions):
        identity(CLIPImageProcessorPil(), size={"longest": 3})


def test_two_classes_of_equal_attributes_are_told_apart_by_real_calls() -> None:
    outputs = []
    with mmcache.Cache("64MiB") as cache:
        for cls in (CLIPImageProcessorPil, CLIPImageProcessor, SiglipImageProcessorPil, CLIPImageProcessorPil):
            with counted(cls) as runs:
                outputs.append(mmcache.wrap(cls(), cache)(picture(5), return_tensors="pt")["pixel_values"])
                first_time = len(outputs) < 4
                assert bool(runs.images) == first_time
        assert torch.equal(outputs[0], outputs[3])
        assert not torch.equal(outputs[0], outputs[1])


def test_a_numpy_attribute_changed_in_place_is_seen() -> None:
    class WithArray(CLIPImageProcessorPil):
        table = np.zeros(3)

    processor = WithArray()
    before = identity(processor)
    WithArray.table[0] = 1
    changed = identity(processor)
    assert changed != before
    WithArray.table[0] = 0
    assert identity(processor) == before


def test_what_an_identity_costs(processor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    identity(processor)
    seconds = min(timeit.repeat(lambda: identity(processor), number=50, repeat=5)) / 50
    with capsys.disabled():
        print(f"\nidentity of {type(processor).__name__}: {seconds * 1e6:.0f} µs")
