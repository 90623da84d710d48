"""Texts as sources of functions: data URLs, base64, ``file://`` URLs, and what is none."""

import base64
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcache.errors import UnsupportedSource
from mmcache.fingerprints import SHA256, digest_source, kind_of, taken_apart
from tests.pictures import picture


def encoded(kind: str, seed: int = 1) -> bytes:
    file = io.BytesIO()
    picture(seed).save(file, kind)
    return file.getvalue()


def digest(text: str) -> bytes:
    return digest_source(text, SHA256, metadata=True)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "AVIF"])
def test_base64_of_any_picture_is_known_by_its_text(kind: str) -> None:
    text = base64.b64encode(encoded(kind)).decode()
    assert digest(text) == digest(str(text))
    assert len({digest(text), digest(base64.b64encode(encoded(kind, 2)).decode())}) == 2
    assert digest(base64.encodebytes(encoded(kind)).decode()) != digest(text), "another text is another source"
    assert digest(f"data:image/{kind.lower()};base64,{text}") != digest(text)


def test_short_base64_is_known_when_all_of_it_is_base64() -> None:
    gif = io.BytesIO()
    picture(1, 1, 1, "L").save(gif, "GIF")
    text = base64.b64encode(gif.getvalue()).decode()
    assert 48 <= len(text) < 4096
    digest(text)
    for other in (text[:-1] + "*", text[:20] + "é" + text[21:], text + " of a cat.jpg"):
        with pytest.raises(UnsupportedSource):
            digest(other)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cat.jpg",
        "photos/2024/cat.jpg",
        "/9j/cat",
        "A" * 5000,
        "data:",
        "data:image/png",
        base64.b64encode(b"no picture at all, but long enough to be one, and then some").decode(),
        "/9j/" + "4AAQ/" * 10 + "cat.jpg",
    ],
)
def test_a_text_that_may_be_a_name_is_no_source(text: str) -> None:
    with pytest.raises(UnsupportedSource, match="no file, data URL or base64"):
        digest(text)


@pytest.mark.parametrize("url", ["http://x.org/a.png", "https://x.org/a.png", "s3://b/a.png", "gs://a", "hf://x/y"])
def test_a_url_names_no_content(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedSource, match="a URL names no content"):
        digest(url)
    # Not even where a file lies under that very path: loaders fetch what looks like a URL.
    monkeypatch.chdir(tmp_path)
    Path(url).parent.mkdir(parents=True)
    Path(url).write_bytes(encoded("PNG"))
    assert kind_of(url) is None
    with pytest.raises(UnsupportedSource, match="a URL names no content"):
        digest(url)


def test_a_file_url_is_its_content_and_its_text(tmp_path: Path) -> None:
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    one.write_bytes(encoded("PNG"))
    other.write_bytes(encoded("PNG"))
    url = f"file://{one}"
    before = digest(url)
    assert before == digest(url)
    assert len({before, digest(str(one)), digest(f"file://{other}")}) == 3
    one.write_bytes(encoded("PNG", 2))
    assert digest(url) != before


@pytest.mark.parametrize("tail", ["a%20b.png", "a.png?x", "a.png#x"])
def test_a_file_url_that_loaders_read_differently_is_no_source(tail: str, tmp_path: Path) -> None:
    (tmp_path / tail).write_bytes(encoded("PNG"))
    with pytest.raises(UnsupportedSource, match="read them differently"):
        digest(f"file://{tmp_path}/{tail}")
    with pytest.raises(UnsupportedSource, match="read them differently"):
        digest("file://localhost/a.png")
    with pytest.raises(UnsupportedSource, match="names no existing file"):
        digest(f"file://{tmp_path}/absent.png")


def test_texts_are_sources_for_functions_only() -> None:
    with pytest.raises(UnsupportedSource):
        digest_source("data:image/png;base64,AAAA", SHA256)


@given(st.text())
def test_any_text_has_a_digest_or_is_refused(text: str) -> None:
    try:
        digest(text)
    except UnsupportedSource:
        return
    assert kind_of(text) == "path" or text.startswith("data:")


# Chat content


def test_content_is_taken_apart_into_entries_in_order_and_sources() -> None:
    image = picture(1)
    assert taken_apart({"type": "image", "image": image, "max_pixels": 3})[1] == [image]
    assert taken_apart({"type": "image_url", "image_url": {"url": "x", "detail": "auto"}})[1] == ["x"]
    first = taken_apart({"image": "x", "max_pixels": 3})[0]
    assert first == taken_apart({"image": "y", "max_pixels": 3})[0]
    for other in (
        {"max_pixels": 3, "image": "x"},
        {"image": "x", "max_pixels": 4},
        {"image": "x"},
        {"url": "x", "max_pixels": 3},
        {"image": {"image": "x"}, "max_pixels": 3},
        {"image": "x", "max_pixels": 3, "url": None},
    ):
        assert taken_apart(other)[0] != first


@pytest.mark.parametrize("content", [{}, {"type": "text", "text": "x"}, {"image": None}, {"image_url": {"x": 1}}])
def test_content_without_a_source_is_none(content: dict[str, object]) -> None:
    with pytest.raises(UnsupportedSource, match="a dict without a source"):
        taken_apart(content)
