import copy
import gc
import hashlib
import io
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import PIL
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageFile

from mmcache.errors import NotEncodable, UnsupportedSource
from mmcache.fingerprints import (
    SHA256,
    UndecodableSource,
    choose_hasher,
    digest_encoded,
    digest_source,
    fingerprint,
    kind_of,
    load,
    loading,
    pixels,
    read_encoded,
)

# Every mode that Pillow makes.
MODES = ["1", "L", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "RGBa", "La"]
MODES += ["I;16", "I;16L", "I;16B", "I;16N"]


def noise(n_bytes: int, seed: int = 0) -> bytes:
    return numpy.random.default_rng(seed).bytes(n_bytes)


def picture(mode: str, size: tuple[int, int] = (13, 7), seed: int = 0) -> Image.Image:
    """An image of random bytes."""
    return Image.frombytes(mode, size, noise(len(Image.new(mode, size).tobytes()), seed))


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:  # noqa: A002 - Pillow's name for it
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def digest(source: object, **options: bool) -> bytes:
    return digest_source(source, SHA256, **options)


class Recorder:
    """A hash that keeps what it is fed."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def update(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def digest(self) -> bytes:
        return hashlib.sha256(b"".join(self.pieces)).digest()


def stream(image: Image.Image) -> bytes:
    recorder = Recorder()
    pixels.update_pixels(image, recorder)
    return b"".join(recorder.pieces)


def reference(image: Image.Image) -> bytes:
    """The canonical stream written a second time, slowly, from ``tobytes`` alone."""
    raw, out = image.tobytes(), bytearray()
    if image.mode in ("RGB", "YCbCr", "HSV"):
        for at in range(0, len(raw), 3):
            out += raw[at : at + 3] + b"\0"
    elif image.mode == "LAB":
        for at in range(0, len(raw), 3):
            out += bytes((raw[at], raw[at + 1] ^ 128, raw[at + 2] ^ 128, 0))
    elif image.mode in ("LA", "PA", "La"):
        for at in range(0, len(raw), 2):
            out += bytes((raw[at], 0, 0, raw[at + 1]))
    else:
        out += raw
    return bytes(out)


# --- pixels


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (33, 7), (7, 33), (64, 64)])
@pytest.mark.parametrize("mode", MODES)
def test_the_stream_of_every_mode_is_the_reference_however_it_is_read(
    mode: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = picture(mode, size)
    expected = reference(image)
    assert stream(image) == expected

    export = pixels._export
    monkeypatch.setattr(pixels, "_PIECE_BYTES", 128)  # several strips, the last one shorter
    monkeypatch.setattr(pixels, "_scratch", pixels._Scratch())
    assert stream(image) == expected

    strips: list[bool] = []

    def export_canvas_only(other: Image.Image, access: int = 0x100) -> object:
        strips.append(other is not image)
        return None if other is image else export(other, access)

    monkeypatch.setattr(pixels, "_export", export_canvas_only)
    assert stream(image) == expected
    assert strips == [False, True]

    monkeypatch.setattr(pixels, "_export", lambda *_: None)
    assert stream(image) == expected


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "1"])
def test_small_images_of_all_modes_are_read_where_they_lie(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_update_strips", lambda *_: pytest.fail("copied"))
    image = picture(mode)
    if image.readonly and int(PIL.__version__.split(".")[0]) < 13:
        image = image.copy()
    assert stream(image) == reference(image)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "I;16", "F"])
def test_images_above_a_block_of_16_megabytes_are_read_in_strips(mode: str) -> None:
    size = {"L": (4501, 4003), "I;16": (3001, 3003)}.get(mode, (2111, 2203))
    image = picture(mode, size).copy()
    assert pixels._export(image) is None
    recorder = Recorder()
    pixels.update_pixels(image, recorder)
    flat = numpy.frombuffer(image.tobytes(), numpy.uint8)
    if mode == "RGB":
        expected = numpy.concatenate([flat.reshape(-1, 3), numpy.zeros((len(flat) // 3, 1), numpy.uint8)], 1).tobytes()
    elif mode == "LA":
        grey, alpha = flat.reshape(-1, 2).T
        expected = numpy.stack([grey, 0 * grey, 0 * grey, alpha], 1).tobytes()
    else:
        expected = flat.tobytes()
    assert b"".join(recorder.pieces) == expected
    # Large enough to hash without the GIL, and never a copy of the whole.
    assert all(200_000 < len(piece) < 2_000_000 for piece in recorder.pieces[:-1])


@pytest.mark.parametrize(("mode", "bands"), [("L", 1), ("P", 1), ("RGBA", 4), ("RGBX", 4), ("CMYK", 4)])
@pytest.mark.parametrize(("stride", "direction"), [(0, 1), (0, -1), (600, 1)])
def test_images_mapped_onto_foreign_memory_are_read_right(mode: str, bands: int, stride: int, direction: int) -> None:
    image = Image.frombuffer(mode, (50, 40), noise(600 * 40), "raw", mode, stride or 50 * bands, direction)
    assert stream(image) == reference(image) == stream(image.copy())


def test_the_padding_of_rgb_does_not_show() -> None:
    array = numpy.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=numpy.uint8)
    plain = Image.fromarray(array)
    with_padding = Image.frombytes("RGBX", (30, 40), noise(4 * 1200))
    with_padding.paste(plain)
    others = [
        plain.copy(),
        plain.resize((30, 40)),
        Image.open(io.BytesIO(encoded(plain, "PNG"))),
        Image.open(io.BytesIO(encoded(plain, "BMP"))),
        Image.merge("RGB", plain.split()),
        Image.frombytes("RGB", (30, 40), array.tobytes()),
        plain.convert("RGBA").convert("RGB"),
        Image.frombytes("RGBA", (30, 40), numpy.dstack([array, array[..., :1]]).tobytes()).convert("RGB"),
        plain.transpose(Image.Transpose.ROTATE_90).transpose(Image.Transpose.ROTATE_270),
    ]
    pasted = Image.new("RGB", (30, 40), (1, 2, 3))
    pasted.paste(plain, (0, 0))
    others.append(pasted)
    padding = {bytes(view.view[3::4]) for other in others if (view := pixels._export(loaded(other)))}
    assert len(padding) > 1, "the images no longer differ in their padding: this test proves nothing"
    assert {digest(other) for other in others} == {digest(plain)}


def loaded(image: Image.Image) -> Image.Image:
    image.load()
    return image


def test_the_repeated_bands_of_la_do_not_show() -> None:
    rgba = picture("RGBA", (30, 40))
    grey, alpha = rgba.convert("L"), rgba.getchannel("A")
    made = [Image.merge("LA", (grey, alpha)), grey.convert("LA")]
    made[1].putalpha(alpha)
    made.append(Image.open(io.BytesIO(encoded(made[0], "PNG"))))
    assert len({digest(image) for image in made}) == 1


def test_every_single_byte_of_a_picture_counts() -> None:
    for mode in MODES:
        image = picture(mode, (8, 3))
        raw = image.tobytes()
        digests = {digest(image)}
        for at in range(len(raw)):
            changed = bytearray(raw)
            changed[at] ^= 1
            digests.add(digest(Image.frombytes(mode, image.size, bytes(changed))))
        assert len(digests) == len(raw) + 1, mode


def test_modes_and_shapes_of_the_same_bytes_differ() -> None:
    sources = [Image.new(mode, size) for mode in MODES for size in ((4, 2), (2, 4), (8, 1), (1, 8))]
    assert len({digest(source) for source in sources}) == len(sources)
    assert digest(Image.new("RGB", (0, 5))) != digest(Image.new("RGB", (5, 0)))


def test_a_mode_that_is_not_known_is_refused() -> None:
    image = Image.new("RGB", (2, 2))
    image._mode = "XYZ"
    with pytest.raises(UnsupportedSource, match="XYZ"):
        digest(image)


def test_reading_does_not_change_the_image() -> None:
    image = Image.frombytes("RGBA", (30, 40), noise(4800)).convert("RGB")
    exported = pixels._export(image)
    assert exported is not None
    before = bytes(exported.view)
    digest(image)
    assert bytes(exported.view) == before
    with pytest.raises(TypeError):
        exported.view[0] = 1


def test_what_is_read_outlives_the_image() -> None:
    image = picture("L", (100, 100))
    expected = image.tobytes()
    exported = pixels._export(image.copy())
    assert exported is not None
    gc.collect()
    assert bytes(exported.view) == expected


# --- images: palette, transparency, metadata


def palette_image(palette: bytes, mode: str = "RGB") -> Image.Image:
    image = Image.frombytes("P", (16, 16), bytes(range(256)))
    image.putpalette(palette, mode)
    return image


def test_palettes_count_by_what_they_mean() -> None:
    colours = noise(768)
    swapped = b"".join(colours[at : at + 3][::-1] for at in range(0, 768, 3))
    assert digest(palette_image(colours)) == digest(palette_image(colours).copy())
    assert digest(palette_image(colours)) != digest(palette_image(colours, "BGR"))
    assert digest(palette_image(colours)) == digest(palette_image(swapped, "BGR"))
    assert digest(palette_image(colours)) != digest(palette_image(noise(768, 1)))
    assert digest(palette_image(noise(1024), "RGBA")) != digest(palette_image(noise(1024, 1), "RGBA"))


@pytest.mark.parametrize("value", [0, 1, False, 1.0, b"\x01", b"", (1, 2, 3), (1,), None, "1"], ids=repr)
def test_transparency_counts_with_its_type(value: object) -> None:
    values: list[object] = [0, 1, False, 1.0, b"\x01", b"", (1, 2, 3), (1,), None, "1"]
    same = []
    for other in values:
        one, two = Image.new("L", (2, 2)), Image.new("L", (2, 2))
        one.info["transparency"], two.info["transparency"] = value, other
        assert digest(one) != digest(Image.new("L", (2, 2)))
        if digest(one) == digest(two):
            same.append(other)
    assert [repr(other) for other in same] == [repr(value)]


def test_a_transparency_that_cannot_be_hashed_is_refused() -> None:
    image = Image.new("L", (2, 2))
    image.info["transparency"] = object()
    with pytest.raises(NotEncodable):
        digest(image)


def test_only_functions_see_metadata() -> None:
    plain, marked = picture("RGB"), picture("RGB")
    marked.info["comment"] = b"hello"
    turned = picture("RGB")
    turned.getexif()[0x0112] = 6
    opened = Image.open(io.BytesIO(encoded(picture("RGB"), "PNG")))  # saving leaves an attribute on an image
    images = [plain, marked, turned, opened]
    assert len({digest(image) for image in images}) == 1
    assert len({digest(image, metadata=True) for image in images}) == 4
    assert digest(marked, metadata=True) == digest(copy.deepcopy(marked), metadata=True)


def test_attributes_of_an_image_count_for_functions() -> None:
    marked: Any = picture("RGB")
    marked.note = "mine"
    assert digest(marked) == digest(picture("RGB"))
    assert digest(marked, metadata=True) != digest(picture("RGB"), metadata=True)


def test_exif_directories_and_rational_numbers_count_for_functions() -> None:
    def photograph(exposure: float, place: str = "N") -> Image.Image:
        exif = Image.Exif()
        exif[0x011A] = 72.5
        exif.get_ifd(0x8769)[0x829A] = exposure
        exif.get_ifd(0x8825)[1] = place
        image = Image.open(io.BytesIO(encoded(picture("RGB"), "JPEG", exif=exif)))
        del image.info["exif"]  # only what is read through getexif is left
        return image

    one = photograph(0.01)
    assert type(one.getexif()[0x011A]).__name__ == "IFDRational"
    assert digest(one, metadata=True) == digest(photograph(0.01), metadata=True)
    others = [photograph(0.02), photograph(0.01, "S")]
    assert len({digest(image, metadata=True) for image in (one, *others)}) == 3
    changed = picture("RGB")
    before = digest(changed, metadata=True)
    changed.getexif().get_ifd(0x8769)[0x829A] = 0.5
    assert digest(changed, metadata=True) != before


def test_for_functions_metadata_that_cannot_be_hashed_is_refused_by_name() -> None:
    image = picture("RGB")
    image.info["handle"] = object()
    assert digest(image) == digest(picture("RGB"))
    with pytest.raises(NotEncodable, match=r"\['info'\]\['handle'\]"):
        digest(image, metadata=True)


def test_for_functions_an_animation_is_refused_since_they_may_read_any_frame() -> None:
    data = encoded(picture("P"), "GIF", save_all=True, append_images=[picture("P", seed=1)])
    image = Image.open(io.BytesIO(data))
    with pytest.raises(UnsupportedSource, match="frames"):
        digest(image, metadata=True)
    digest(image)


def test_the_frame_stays_and_seek_still_works() -> None:
    data = encoded(picture("L"), "GIF", save_all=True, append_images=[picture("L", seed=seed) for seed in (1, 2)])
    image = Image.open(io.BytesIO(data))
    assert isinstance(image, ImageFile.ImageFile)
    image.seek(1)
    second = digest(image)
    assert image.tell() == 1
    image.seek(2)
    third = digest(image)
    image.seek(0)
    first = digest(image)
    image.seek(1)
    assert digest(image) == second
    assert len({first, second, third}) == 3


def test_pixels_put_in_place_count() -> None:
    image = picture("RGB")
    before = digest(image)
    image.putpixel((0, 0), (1, 2, 3))
    assert digest(image) != before


# --- loading


def truncated(seed: int = 0) -> bytes:
    data = encoded(picture("RGB", (200, 200), seed), "PNG")
    return data[: len(data) // 2]


def test_a_failed_load_is_remembered_for_the_object_and_never_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.open(io.BytesIO(truncated()))
    calls: list[object] = []
    real = ImageFile.ImageFile.load

    def counting(self: ImageFile.ImageFile) -> object:
        calls.append(self)
        return real(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", counting)
    errors = []
    for _ in range(3):
        with pytest.raises(UndecodableSource) as failure:
            load(image)
        errors.append(failure.value.error)
    assert len(calls) == 1
    assert {(type(error), str(error)) for error in errors} == {(OSError, str(errors[0]))}
    with pytest.raises(OSError, match=str(errors[0]).split("(")[0].strip()):
        Image.open(io.BytesIO(truncated())).load()


def test_a_failure_does_not_stick_to_another_object() -> None:
    with pytest.raises(UndecodableSource):
        load(Image.open(io.BytesIO(truncated())))
    for seed in range(50):
        load(Image.open(io.BytesIO(encoded(picture("RGB", seed=seed), "PNG"))))


def test_a_remembered_failure_dies_with_its_image() -> None:
    image = Image.open(io.BytesIO(truncated()))
    for _ in range(2):
        with pytest.raises(UndecodableSource):
            load(image)
    alive, key = weakref.ref(image), id(image)
    assert key in loading._failures
    del image
    gc.collect()
    assert alive() is None
    assert key not in loading._failures


def test_remembered_failures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MOST_FAILURES", 5)
    images = [Image.open(io.BytesIO(truncated())) for _ in range(12)]
    for image in images:
        with pytest.raises(UndecodableSource):
            load(image)
    assert len(loading._failures) <= 5


def test_an_error_that_cannot_be_copied_is_remembered_by_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class StubbornError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fail(_image: object) -> None:
        raise StubbornError(1, 2)

    image = picture("RGB")
    monkeypatch.setattr(Image.Image, "load", fail)
    for _ in range(2):
        with pytest.raises(UndecodableSource, match="1 and 2"):
            load(image)


def test_a_closed_image_is_undecodable_like_pillow_says() -> None:
    image = Image.open(io.BytesIO(encoded(picture("RGB"), "PNG")))
    image.close()
    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever Pillow raises
        image.load()
    with pytest.raises(UndecodableSource) as failure:
        digest(image)
    assert (type(failure.value.error), str(failure.value.error)) == (type(plain.value), str(plain.value))


@pytest.mark.parametrize("format_", ["PNG", "JPEG"])
def test_two_threads_on_one_lazy_image_always_get_its_pixels(format_: str) -> None:
    data = [encoded(picture("RGB", (90, 90), seed), format_) for seed in range(15)]
    expected = [digest(loaded(Image.open(io.BytesIO(one)))) for one in data]
    for index in range(150):
        image = Image.open(io.BytesIO(data[index % 15]))
        start = threading.Barrier(2)
        found: list[bytes] = []

        def read(image: Image.Image = image, start: threading.Barrier = start, found: list[bytes] = found) -> None:
            start.wait()
            found.append(digest(image))

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected[index % 15]] * 2


def test_a_lock_held_at_a_fork_does_not_hang_the_child() -> None:
    code = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from PIL import Image
from mmcache.fingerprints import fingerprint, loading
image = Image.new("RGB", (5, 5))
expected = fingerprint(image)
held, done = threading.Event(), threading.Event()
def hold():
    with loading.locked(image):
        held.set()
        done.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # a child that hangs shall not outlive the test
    os._exit(0 if fingerprint(image) == expected else 1)
status = os.waitpid(child, 0)[1]
done.set()
thread.join()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- arrays and tensors

ARRAYS = hnp.arrays(
    hnp.unsigned_integer_dtypes() | hnp.floating_dtypes(sizes=(16, 32, 64)) | hnp.boolean_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)


def is_backwards(array: "numpy.ndarray[Any, Any]") -> bool:
    return any(stride < 0 for stride in array.strides)


@settings(deadline=None, max_examples=150)
@given(ARRAYS, st.data())
def test_arrays_count_by_dtype_shape_and_values_whatever_their_strides(array: Any, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(array.ndim)))
    view = array.transpose(order) if array.ndim else array
    plain = numpy.array(view, order="C", copy=True)
    assert digest(view) == digest(plain)
    scattered = numpy.zeros(tuple(2 * side for side in view.shape), view.dtype)[
        tuple(slice(None, None, 2) for _ in order)
    ]
    if array.ndim:
        scattered[...] = view
        assert digest(scattered) == digest(plain)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
def test_blocks_of_any_size_give_the_same_digest(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmcache.fingerprints import arrays

    array = numpy.arange(7 * 5 * 6, dtype="<f8").reshape(7, 5, 6).transpose(2, 0, 1)
    tensor = torch.from_numpy(array)
    expected = digest(numpy.ascontiguousarray(array)), digest(tensor.contiguous())
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", block)
    assert (digest(array), digest(tensor)) == expected


def test_a_large_strided_array_is_never_copied_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmcache.fingerprints import sources

    recorder = Recorder()
    array = numpy.arange(12_000_000, dtype=numpy.uint8).reshape(3, 2000, 2000).transpose(1, 2, 0)
    monkeypatch.setattr(type(SHA256), "new", lambda _: recorder)
    sources.digest_source(array, SHA256)
    assert max(map(len, recorder.pieces)) <= 2 << 20
    assert b"".join(recorder.pieces[1:]) == array.tobytes()


def test_a_negative_stride_is_another_source_even_where_the_values_are_equal() -> None:
    array = numpy.zeros((40, 1, 3), numpy.uint8)
    assert digest(array) != digest(array[:, ::-1])
    assert digest(array[::-1]) == digest(array[:, ::-1])  # both refused by torch, in the same way


@pytest.mark.parametrize(
    "make",
    [
        lambda a: a.astype("<u2"),
        lambda a: a.astype("<u2").view(">u2"),
        lambda a: a.astype("<i2"),
        lambda a: a.astype(numpy.float16),
        lambda a: a.reshape(2, 60),
        lambda a: a.reshape(120),
        lambda a: a.astype(bool),
        lambda a: a.view(numpy.int8),
        torch.from_numpy,
        lambda a: torch.from_numpy(a).to(torch.bfloat16),
        lambda a: torch.from_numpy(a).to(torch.float16),
        lambda a: torch.from_numpy(a).bool(),
        Image.fromarray,
        lambda a: a.tobytes(),
    ],
)
def test_kinds_dtypes_and_shapes_are_different_sources(make: Callable[[Any], object]) -> None:
    array = numpy.zeros((10, 12), numpy.uint8)
    assert digest(make(array)) != digest(array)


def test_tensors_of_equal_values_count_by_their_shape() -> None:
    tensor = torch.zeros(10, 12)
    assert len({digest(tensor.reshape(shape)) for shape in ((10, 12), (12, 10), (120,), (1, 10, 12))}) == 4


def test_bfloat16_and_float16_of_the_same_bits_differ_and_each_bit_counts() -> None:
    tensor = torch.arange(1, 7).to(torch.bfloat16)
    assert digest(tensor) != digest(tensor.view(torch.float16))
    changed = tensor.clone()
    changed.view(torch.int16)[3] ^= 1
    assert digest(changed) != digest(tensor)


def test_tensors_count_by_their_values_whatever_their_layout_or_mode() -> None:
    tensor = torch.arange(2 * 3 * 8 * 8, dtype=torch.float32).reshape(2, 3, 8, 8)
    with torch.inference_mode():
        inference = tensor.clone()
    others = [
        tensor.contiguous(memory_format=torch.channels_last),
        tensor.flip(0).flip(0),
        torch.nn.Parameter(tensor.clone()),
        tensor.clone().requires_grad_(),
        torch.cat([tensor, tensor])[:2],
        inference,
    ]
    assert {digest(other) for other in others} == {digest(tensor)}
    assert digest(tensor[:1].expand(2, -1, -1, -1)) == digest(torch.cat([tensor[:1]] * 2))
    assert digest(torch.tensor([1 + 1j]).conj()) == digest(torch.tensor([1 - 1j]))
    assert digest(torch.tensor([[0.0, 1, 2]])[:, 1:2]) == digest(torch.tensor([[1.0]]))
    assert digest(tensor.clone().requires_grad_(), metadata=True) != digest(tensor, metadata=True)


@pytest.mark.parametrize(
    "source",
    [
        torch.zeros(3, 4, device="meta"),
        torch.eye(3).to_sparse(),
        numpy.array([None, 1]),
        numpy.zeros(2, "u1,u2"),
        numpy.zeros(2, numpy.longdouble),
    ],
    ids=["meta", "sparse", "object", "structured", "longdouble"],
)
def test_arrays_and_tensors_whose_values_do_not_lie_in_memory_are_refused(source: object) -> None:
    with pytest.raises(UnsupportedSource):
        digest(source)


def test_inside_vmap_a_tensor_has_no_memory_of_its_own_and_is_refused() -> None:
    refusals: list[object] = []

    def inner(row: torch.Tensor) -> torch.Tensor:
        with pytest.raises(UnsupportedSource) as refusal:
            digest(row)
        refusals.append(refusal.value)
        return row

    torch.vmap(inner)(torch.zeros(2, 3))
    assert refusals


# --- kinds, encoded sources and paths


class PathLike:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)


class Picture(numpy.ndarray[Any, Any]):
    pass


def test_kinds(tmp_path: Path) -> None:
    file = tmp_path / "picture"
    file.write_bytes(b"data")
    mapped = numpy.memmap(file, numpy.uint8)
    expected: list[tuple[object, str | None]] = [
        (picture("RGB"), "image"),
        (Image.open(io.BytesIO(encoded(picture("RGB"), "PNG"))), "image"),
        (numpy.zeros(3), "array"),
        (mapped, "array"),
        (torch.zeros(3), "tensor"),
        (torch.nn.Parameter(torch.zeros(3)), "tensor"),
        (b"", "encoded"),
        (bytearray(), "encoded"),
        (memoryview(b""), "encoded"),
        (io.BytesIO(), "encoded"),
        (str(file), "path"),
        (file, "path"),
        (PathLike(file), "path"),
        (str(file) + "x", None),
        (str(tmp_path), None),
        ("https://example.org/a.png", None),
        ("data:image/png;base64,AAAA", None),
        ("A" * 10_000_000, None),
        ("a\0b", None),
        ("\udcff", None),
        ("", None),
        (numpy.ma.masked_array([1], [True]), None),
        (numpy.zeros(3).view(Picture), None),
        (numpy.float32(1), None),
        (None, None),
        (1, None),
        ([], None),
        (io.StringIO(), None),
        (io.BufferedReader(io.BytesIO()), None),
    ]
    assert [(kind_of(source), kind) for source, kind in expected if kind_of(source) != kind] == []


def test_what_is_no_source_is_refused_with_what_would_be() -> None:
    for source in (3, "https://example.org/a.png", numpy.ma.masked_array([1], [True]), [[1]]):
        with pytest.raises(UnsupportedSource, match="PIL images, numpy arrays"):
            fingerprint(source)
    with pytest.raises(UnsupportedSource, match="a URL names no content"):
        digest("https://example.org/a.png")


def test_a_list_within_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(UnsupportedSource):
        fingerprint(endless)


def test_encoded_bytes_are_one_source_however_they_are_held(tmp_path: Path) -> None:
    data = noise(1000)
    behind = io.BytesIO(b"junk" + data)
    behind.seek(4)
    strided = memoryview(b"".join(bytes((byte, 0)) for byte in data))[::2]
    held: list[object] = [data, bytearray(data), memoryview(data), io.BytesIO(data), behind, strided]
    assert {digest(source) for source in held} == {digest_encoded(data, "encoded", SHA256)}
    assert behind.tell() == 4
    file = tmp_path / "picture"
    file.write_bytes(data)
    assert {digest(file), digest(str(file)), digest(PathLike(file))} == {digest_encoded(data, "path", SHA256)}
    assert digest(file) != digest(data)
    assert {bytes(read_encoded(source)) for source in (*held, file)} == {data}


def test_a_position_beyond_the_end_is_no_bytes() -> None:
    source = io.BytesIO(b"abc")
    source.seek(10)
    assert bytes(read_encoded(source)) == b""


def test_a_file_is_known_by_its_bytes_and_not_by_its_name_or_times(tmp_path: Path) -> None:
    one, two = tmp_path / "one.png", tmp_path / "two.jpg"
    one.write_bytes(b"same")
    two.write_bytes(b"same")
    os.utime(two, (1, 1))
    assert digest(one) == digest(two)
    times = one.stat()
    one.write_bytes(b"SAME")
    os.utime(one, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest(one) != digest(two)


def test_a_path_is_opened_once_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(encoded(picture("RGB"), "PNG"))
    opened: list[object] = []
    real = open

    def counting(path: Any, *args: Any) -> Any:
        opened.append(path)
        return real(path, *args)

    monkeypatch.setitem(read_encoded.__globals__, "open", counting)
    digest(file)
    assert opened == [file]
    fingerprint(file)
    assert opened == [file, file]


def test_a_file_that_cannot_be_read_is_undecodable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gone"
    file.write_bytes(b"")
    monkeypatch.setattr("mmcache.fingerprints.sources.kind_of", lambda _: "path")
    file.unlink()
    with pytest.raises(UndecodableSource) as failure:
        digest(file)
    assert isinstance(failure.value.error, FileNotFoundError)
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(UndecodableSource, match="closed"):
        read_encoded(closed)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True),
        ("PIL.Image.MAX_IMAGE_PIXELS", 1000),
        ("PIL.Image.MAX_IMAGE_PIXELS", None),
        ("PIL.GifImagePlugin.LOADING_STRATEGY", 2),
        ("PIL.__version__", "1.2.3"),
    ],
)
def test_what_decides_how_bytes_decode_counts(where: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(b"data")
    monkeypatch.setattr(where, value)
    assert digest(b"data") != before


def test_hashers_decide_the_digest() -> None:
    image = picture("RGB")
    hashers = [choose_hasher("auto", secret=None, exposed=exposed) for exposed in (False, True)]
    assert len({digest_source(image, hasher) for hasher in (*hashers, SHA256)}) == 3
    assert digest_source(image, hashers[0]) == digest_source(image.copy(), hashers[0])


# --- the public fingerprint


def test_a_fingerprint_shows_its_algorithm_and_compares() -> None:
    one, same, other = (fingerprint(picture("RGB", seed=seed)) for seed in (0, 0, 1))
    assert one == same != other
    assert hash(one) == hash(same)
    assert str(one) == f"sha256:{digest(picture('RGB')).hex()}"
    assert pickle.loads(pickle.dumps(one)) == one


def test_a_file_its_bytes_and_lossless_copies_agree(tmp_path: Path) -> None:
    image = picture("RGB", (20, 30))
    files = [
        encoded(image, "PNG"),
        encoded(image, "PNG", compress_level=0),
        encoded(image, "BMP"),
        encoded(image, "WEBP", lossless=True),
        encoded(image, "TIFF"),
        encoded(image.convert("RGBA"), "PNG"),
    ]
    path = tmp_path / "picture.png"
    path.write_bytes(files[0])
    sources = [*files, path, str(path), io.BytesIO(files[0]), bytearray(files[0]), memoryview(files[0])]
    assert len({fingerprint(source) for source in sources}) == 1
    assert fingerprint(path) != fingerprint(image)


def test_a_file_is_turned_upright_as_its_exif_says_and_an_opened_image_is_not() -> None:
    image = picture("RGB", (20, 30))
    exif = Image.Exif()
    exif[0x0112] = 3
    turned = encoded(image, "PNG", exif=exif)
    assert fingerprint(turned) == fingerprint(encoded(image.transpose(Image.Transpose.ROTATE_180), "PNG"))
    assert fingerprint(turned) != fingerprint(encoded(image, "PNG"))
    assert fingerprint(Image.open(io.BytesIO(turned))) == fingerprint(image)


def test_lists_count_by_their_members_in_order() -> None:
    one, two = picture("RGB"), picture("RGB", seed=1)
    lists = [one, [one], [one, one], [one, two], [two, one], [[one, two]], [[one], [two]], []]
    assert len({fingerprint(source) for source in lists}) == len(lists)
    assert fingerprint((one, two)) == fingerprint([one, two])


def test_what_does_not_decode_raises_as_pillow_does_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.png"
    path.write_bytes(b"no picture")
    with pytest.raises(PIL.UnidentifiedImageError) as plain:
        Image.open(path)
    with pytest.raises(PIL.UnidentifiedImageError) as ours:
        fingerprint(path)
    assert str(ours.value) == str(plain.value)
    with pytest.raises(OSError, match="truncated"):
        fingerprint(truncated())
    with pytest.raises(OSError, match="truncated"):
        fingerprint(Image.open(io.BytesIO(truncated())))


@pytest.mark.parametrize("seed", ["0", "1"])
def test_fingerprints_are_the_same_in_another_process(seed: str) -> None:
    code = """
import numpy, torch
from PIL import Image
from mmcache.fingerprints import fingerprint
array = numpy.arange(300, dtype=numpy.uint8).reshape(10, 10, 3)
print(*[fingerprint(source) for source in (Image.fromarray(array), array, torch.from_numpy(array))])
"""
    array = numpy.arange(300, dtype=numpy.uint8).reshape(10, 10, 3)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        check=True,
        text=True,
    )
    expected = [str(fingerprint(source)) for source in (Image.fromarray(array), array, torch.from_numpy(array))]
    assert done.stdout.split() == expected


def test_a_library_that_is_only_half_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("torch", "torch.nn", "numpy", "PIL.Image"):
        monkeypatch.setitem(sys.modules, module, type(sys)(module))
    assert kind_of(object()) is None
    assert kind_of(b"") == "encoded"
