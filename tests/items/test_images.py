"""PIL images in items: a private copy in, a fresh copy out, and equal to what was given in all that code can see."""

import io
import threading
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from PIL.TiffImagePlugin import IFDRational

from mmcache.items import NotStorable, freeze
from mmcache.layout.compare import difference
from tests.pictures import picture

MODES = (
    "1",
    "L",
    "LA",
    "La",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "RGBa",
    "RGBX",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "I;16",
)


def of_mode(mode: str) -> Image.Image:
    made = picture(3, 37, 21)
    match mode:
        case "RGBa":
            return made.convert("RGBA").convert("RGBa")
        case "La":
            return made.convert("LA").convert("La")
        case "PA":
            return made.convert("P").convert("PA")
        case "LAB":
            return Image.frombytes("LAB", made.size, made.tobytes())
        case "I;16":
            return Image.fromarray(np.arange(37 * 21, dtype=np.uint16).reshape(21, 37))
        case _:
            return made.convert(mode)


@pytest.mark.parametrize("mode", MODES)
def test_an_image_of_any_mode_is_given_again_bit_for_bit(mode: str) -> None:
    image = of_mode(mode)
    assert image.mode == mode
    item = freeze({"image": image})
    first, second = item.thaw()["image"], item.thaw()["image"]
    for given in (first, second):
        assert type(given) is Image.Image
        assert difference(image, given) == ""
        assert given.im is not image.im
    assert first.im is not second.im


def test_palette_transparency_and_info_are_kept() -> None:
    image = picture(1).quantize(17)
    image.info |= {"transparency": 3, "dpi": (72, IFDRational(1, 3)), "photoshop": {1: {"a": [b"x"]}}, "exif": b"Exif"}
    given = freeze(image).thaw()
    assert difference(image, given) == ""
    assert given.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    assert given.palette.colors == image.palette.colors  # type: ignore[union-attr]


def test_a_palette_that_was_just_put_is_kept() -> None:
    image = Image.new("L", (8, 8), 1)
    image.putpalette(bytes(range(60)) + bytes((7,)) * 4, "RGBA")
    assert difference(image, freeze(image).thaw()) == ""


def test_text_of_a_png_keeps_its_language_and_is_copied() -> None:
    described = PngInfo()
    described.add_itxt("Title", "Zürich", "de", "Titel")
    file = io.BytesIO()
    picture(1).save(file, "PNG", pnginfo=described)
    with Image.open(file) as opened:
        image = opened.convert("RGB")
    given = freeze(image).thaw()
    title = given.info["Title"]
    assert (title, title.lang, title.tkey) == ("Zürich", "de", "Titel")
    assert title is not image.info["Title"]


def test_neither_what_was_given_nor_what_is_given_reaches_the_item() -> None:
    image: Any = picture(1).quantize(5)
    image.info["photoshop"] = {1: [2]}
    before = freeze(image).thaw()
    item = freeze(image)
    for touched in (image, item.thaw(), item.thaw()):
        touched.putpixel((0, 0), 4)
        touched.paste(2, (1, 1, 9, 9))
        touched.putpalette(bytes(range(15)))
        touched.palette.palette = b"\1\2\3"
        touched.info["photoshop"][1].append(3)
        touched.info["more"] = 1
        touched.getexif()[0x0112] = 6
    assert difference(before, item.thaw()) == ""
    assert dict(item.thaw().getexif()) == {}


@pytest.mark.parametrize(("mode", "a_pixel"), [("L", 1), ("I;16", 2), ("RGB", 4), ("LA", 4), ("F", 4)])
def test_the_pixels_are_counted_as_pillow_keeps_them(mode: str, a_pixel: int) -> None:
    image = Image.new(mode, (1000, 300))
    assert 0 <= freeze(image).nbytes - 300_000 * a_pixel < 5000
    image.info["exif"] = bytes(10_000)
    assert freeze(image).nbytes > 300_000 * a_pixel + 10_000


def opened(image: Image.Image, kind: str = "PNG") -> Any:
    file = io.BytesIO()
    image.save(file, kind)
    return Image.open(file)


class Own(Image.Image):
    """A class of somebody's own."""


def closed() -> Image.Image:
    image = picture(1)
    image.close()
    return image


def with_attribute(**named: Any) -> Image.Image:
    image = picture(1)
    vars(image).update(named)
    return image


def with_info(value: Any) -> Image.Image:
    image = picture(1)
    image.info["x"] = value
    return image


def with_exif() -> Image.Image:
    image = picture(1)
    image.getexif()[0x010E] = "changed in place"
    return image


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (lambda: opened(picture(1)), "PngImageFile"),
        (lambda: opened(picture(1), "JPEG"), "JpegImageFile"),
        (Own, "Own"),
        (closed, "without pixels"),
        (lambda: Image.Image(), "without pixels"),
        (lambda: with_attribute(caption="a cat"), "caption"),
        (lambda: with_attribute(encoderinfo={"quality": 3}), "encoderinfo"),
        (lambda: with_info(object()), "object"),
        (lambda: with_info([np.zeros(3)]), "ndarray"),
        (with_exif, "EXIF"),
    ],
    ids=["png file", "jpeg file", "class", "closed", "empty", "attribute", "encoderinfo", "info", "nested info", "exif"],
)  # fmt: skip
def test_what_a_copy_would_not_be_equal_to_is_refused_with_the_reason(image: Any, reason: str) -> None:
    with pytest.raises(NotStorable, match=reason):
        freeze([image()])


def test_reading_exif_and_saving_an_image_do_not_keep_it_from_being_stored() -> None:
    turned = picture(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.info["exif"] = exif.tobytes()
    turned = ImageOps.exif_transpose(turned)  # reads EXIF, and writes what is left of it into info
    turned.getexif()
    turned.save(io.BytesIO(), "JPEG")
    given = freeze(turned).thaw()
    assert difference(turned, given) == ""
    assert dict(given.getexif()) == dict(turned.getexif())


def test_threads_that_take_one_image_at_once_get_equal_and_separate_ones() -> None:
    image = picture(5, 300, 200).quantize(64)
    image.putpalette(bytes(range(192)))  # still to be brought into Pillow's memory
    item = freeze(image)
    expected = image.copy()
    failures: list[str] = []

    def take() -> None:
        for _ in range(50):
            given = item.thaw()
            failures.extend(filter(None, [difference(expected, given)]))
            given.paste(0, (0, 0, 300, 200))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda image: image.putpixel((3, 3), 1), "pixels"),
        (lambda image: image.putpalette(bytes(range(15))), "palette"),
        (lambda image: image.info.update(dpi=(1, 1)), "dpi"),
    ],
    ids=["pixels", "palette", "info"],
)
def test_a_difference_of_images_says_where_it_is(change: Any, found: str) -> None:
    expected = picture(1).quantize(5)
    expected.putpixel((3, 3), 0)
    other = expected.copy()
    assert difference([expected], [other]) == ""
    change(other)
    assert found in difference([expected], [other])
    assert "'size'" in difference(expected, expected.crop((0, 0, 5, 5)))
    assert "'mode'" in difference(expected.convert("L"), expected.convert("LA"))
