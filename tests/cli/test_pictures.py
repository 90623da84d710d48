"""The demo's photographs: enough of them, distinct, of real sizes, from nowhere but this machine."""

import importlib.util
import socket
from pathlib import Path

import pytest
from PIL import Image

import mmcache
from mmcache.cli.pictures import carried_pictures, pictures_in


@pytest.fixture
def notes() -> list[str]:
    return []


def test_carried_photographs_are_at_least_31_and_no_two_are_equal() -> None:
    pictures = carried_pictures()
    assert len(pictures) >= 31
    assert len({mmcache.fingerprint(picture.image) for picture in pictures}) == len(pictures)
    assert len({picture.name for picture in pictures}) == len(pictures)
    assert len({picture.image.size for picture in pictures}) > len(pictures) // 2


def test_carried_photographs_look_like_pictures_in_a_chat() -> None:
    for picture in carried_pictures():
        assert picture.image.mode == "RGB"
        assert 480 <= max(picture.image.size) <= 1100
        # A photograph has shades; what is drawn or made up has few colours, or noise in each pixel.
        shades = picture.image.convert("L").histogram()
        assert sum(count > 0 for count in shades) > 100, picture.name
        small = picture.image.convert("L").resize((64, 64))
        near = [abs(small.getpixel((x, y)) - small.getpixel((x + 1, y))) for x in range(63) for y in range(64)]  # type: ignore[operator]
        assert sum(near) / len(near) < 40, picture.name


def test_carried_photographs_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    assert carried_pictures()


def test_limits_vary_from_request_to_request() -> None:
    pictures = carried_pictures()
    assert len({(picture.min_pixels, picture.max_pixels) for picture in pictures}) >= 15
    for picture in pictures:
        assert 0 < picture.min_pixels < picture.max_pixels
        assert picture.options == {
            "size": {"shortest_edge": picture.min_pixels, "longest_edge": picture.max_pixels},
        }


def test_without_scikit_image_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(mmcache.MissingExtra, match=r"scikit-image: pip install 'mmcache\[demo\]'"):
        carried_pictures()


def test_all_pictures_of_a_folder_are_used_and_the_rest_is_noted(
    photographs: Path, tmp_path: Path, notes: list[str]
) -> None:
    for file in photographs.rglob("*.*"):
        (tmp_path / file.relative_to(photographs)).parent.mkdir(exist_ok=True)
        (tmp_path / file.relative_to(photographs)).write_bytes(file.read_bytes())
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "cut.png").write_bytes((photographs / "a.png").read_bytes()[:3000])
    Image.new("RGB", (400, 2)).save(tmp_path / "line.png")
    pictures = pictures_in(tmp_path, notes.append)
    assert [picture.name for picture in pictures] == ["a.png", "b.jpg", "below/c.png"]
    assert len(notes) == 3
    for note, name in zip(notes, ("cut.png", "line.png", "notes.txt"), strict=True):
        assert note.startswith(f"skipped {tmp_path / name}: ")
    assert "400 by 2 pixels" in notes[1]


def test_pictures_of_a_folder_are_upright_and_in_rgb(tmp_path: Path, notes: list[str]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (30, 20), "red").save(tmp_path / "a.jpg", exif=exif)
    Image.new("P", (30, 20)).save(tmp_path / "b.png")
    Image.new("CMYK", (30, 20)).save(tmp_path / "c.jpg")
    pictures = pictures_in(tmp_path, notes.append)
    assert [picture.image.size for picture in pictures] == [(20, 30), (30, 20), (30, 20)]
    assert {picture.image.mode for picture in pictures} == {"RGB"}
    assert not notes


def test_a_folder_without_pictures_is_refused(tmp_path: Path, notes: list[str]) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(mmcache.BadArgument, match="a folder with at least one picture"):
        pictures_in(tmp_path, notes.append)
    assert len(notes) == 1
