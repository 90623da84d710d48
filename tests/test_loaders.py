"""Loaders: `cached` on functions that give PIL images, their sources, and those that `install` covers."""

import asyncio
import base64
import io
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile, ImageOps
from transformers import CLIPImageProcessorPil

import mmcache
from mmcache.layout.compare import difference
from mmcache.loaders import Loaders
from tests.pictures import picture


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for each run of `loader`, counted in a library: what a function itself names is part of its key."""
    counted: list[object] = []
    original = Image.Image.resize

    def resize(self: Image.Image, *args: Any, **options: Any) -> Image.Image:
        counted.append(self)
        return original(self, *args, **options)

    monkeypatch.setattr(Image.Image, "resize", resize)
    return counted


@pytest.fixture
def cache() -> Iterator[mmcache.Cache]:
    with mmcache.Cache("64MiB", name="loaders", verify_rate=0) as fresh:
        yield fresh


def encoded(seed: int = 1, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(seed).save(file, kind, **options)
    return file.getvalue()


def base64_of(seed: int = 1, kind: str = "PNG") -> str:
    return base64.b64encode(encoded(seed, kind)).decode()


def decoded(source: Any) -> Image.Image:
    """Open what chat content, a path, a text or bytes hold, as loaders do."""
    while isinstance(source, dict):
        source = next(filter(None, map(source.get, ("image", "image_url", "url", "path", "base64"))))
    if isinstance(source, Image.Image):
        return source.copy()
    if isinstance(source, str):
        source = source.removeprefix("file://")
        if not source.startswith("/") or source.startswith("/9j/"):
            source = base64.b64decode(source.rpartition(",")[2])
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        return image.copy()


def loader(content: Any, factor: int = 2) -> Image.Image:
    image = ImageOps.exif_transpose(decoded(content))
    limit = content.get("max_side", 64) if isinstance(content, dict) else 64
    return image.convert("RGB").resize((limit // factor, limit // factor))


def counts(cache: mmcache.Cache) -> tuple[int, int, int, int]:
    info = cache.cache_info()
    return info.misses, info.hits, info.bypassed, info.errors


# Sources


def in_forms(path: Path) -> dict[str, Callable[[], Any]]:
    text = base64.b64encode(path.read_bytes()).decode()
    url = f"data:image/png;base64,{text}"
    return {
        "path": lambda: str(path),
        "path object": lambda: path,
        "file url": lambda: f"file://{path}",
        "data url": lambda: url,
        "base64": lambda: text,
        "bytes": path.read_bytes,
        "image": lambda: picture(1),
        "content with an image": lambda: {"type": "image", "image": picture(1)},
        "content with a data url": lambda: {"type": "image", "image": url, "max_side": 32},
        "content with a file url": lambda: {"type": "image", "image": f"file://{path}"},
        "content of openai": lambda: {"type": "image_url", "image_url": {"url": url, "detail": "auto"}},
        "content with a path": lambda: {"type": "image", "path": str(path)},
        "content with base64": lambda: {"type": "image", "base64": text},
        "content with bytes": lambda: {"type": "image", "image": path.read_bytes()},
        "content with absent fields": lambda: {"type": "image", "url": None, "path": str(path), "text": None},
    }


FORMS = list(in_forms(Path(__file__)))


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_opens_each_source_once_and_gives_the_same_image_again(
    cache: mmcache.Cache, tmp_path: Path, form: str, runs: list[object]
) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    source = in_forms(tmp_path / "a.png")[form]
    cached = mmcache.cached(cache=cache)(loader)
    expected = loader(source())
    runs.clear()
    for _ in range(3):
        given = cached(source())
        assert difference(expected, given) == ""
        given.paste(0, (0, 0, 9, 9))
        given.info["x"] = 1
    assert len(runs) == 1
    assert counts(cache) == (1, 2, 0, 0)


@pytest.mark.parametrize("form", [form for form in FORMS if "image" not in form])
def test_a_hit_decodes_nothing(cache: mmcache.Cache, tmp_path: Path, form: str, decoded_files: list[object]) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    source = in_forms(tmp_path / "a.png")[form]
    cached = mmcache.cached(cache=cache)(loader)
    cached(source())
    assert decoded_files
    decoded_files.clear()
    cached(source())
    assert decoded_files == []


def test_forms_of_one_picture_and_all_that_content_says_are_keys_of_their_own(
    cache: mmcache.Cache, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    cached = mmcache.cached(cache=cache)(loader)
    sources = [form() for form in in_forms(tmp_path / "a.png").values()]
    sources += [{"image": picture(1)}, {"image": picture(1), "type": "image"}, {"type": "image", "image": picture(2)}]
    for source in sources:
        assert difference(loader(source), cached(source)) == ""
    assert counts(cache) == (len(sources), 0, 0, 0)


@pytest.mark.parametrize(
    "source",
    [
        "https://x.org/a.png",
        {"type": "image", "image": "http://x.org/a.png"},
        {"type": "image_url", "image_url": {"url": "https://x.org/a.png"}},
        {"type": "image", "image": picture(1), "url": "https://x.org/a.png"},
    ],
)
def test_a_url_is_a_bypass_with_its_reason(cache: mmcache.Cache, source: Any) -> None:
    cached = mmcache.cached(cache=cache)(lambda content: 3)
    assert [cached(source), cached(source)] == [3, 3]
    assert counts(cache) == (0, 0, 2, 0)
    assert "a URL names no content" in next(iter(cache.cache_info().bypass_reasons))


@pytest.mark.parametrize("source", ["cat.jpg", {"image": "cat.jpg"}, {"type": "text", "text": "x"}, {"image": 3}])
def test_what_only_the_function_understands_is_a_bypass(cache: mmcache.Cache, source: Any) -> None:
    cached = mmcache.cached(cache=cache)(lambda content: 3)
    assert cached(source) == 3
    assert counts(cache) == (0, 0, 1, 0)


@pytest.mark.parametrize("form", ["path", "path object", "file url", "content with a path", "content with a file url"])
def test_a_file_that_changes_between_calls_is_another_picture(cache: mmcache.Cache, tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.png"
    cached = mmcache.cached(cache=cache)(loader)
    for seed in (1, 2, 1, 2):
        path.write_bytes(encoded(seed))
        source = in_forms(path)[form]()
        assert difference(loader(source), cached(source)) == ""
    assert counts(cache) == (2, 2, 0, 0)


@pytest.mark.parametrize("form", ["path", "file url", "content with a path", "content with a file url"])
def test_a_file_that_changes_while_it_is_loaded_is_not_kept(cache: mmcache.Cache, tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.png"
    swaps = iter([encoded(2)])

    def swapping(content: Any) -> Image.Image:
        image = loader(content)
        path.write_bytes(next(swaps, path.read_bytes()))
        return image

    cached = mmcache.cached(cache=cache, version="1")(swapping)
    path.write_bytes(encoded(1))
    source = in_forms(path)[form]
    first = loader(source())
    assert difference(first, cached(source())) == ""
    assert "the file changed while it was processed" in next(iter(cache.cache_info().bypass_reasons))
    path.write_bytes(encoded(1))
    assert difference(first, cached(source())) == ""
    assert counts(cache) == (1, 0, 1, 0)


def test_the_same_bytes_under_two_paths_are_two_keys_of_a_function(cache: mmcache.Cache, tmp_path: Path) -> None:
    cached = mmcache.cached(cache=cache)(lambda path: (str(path), loader(path)))
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(encoded())
    assert cached(tmp_path / "a.png") != cached(tmp_path / "b.png")
    assert counts(cache) == (2, 0, 0, 0)


def test_a_picture_turned_by_exif_comes_as_the_loader_turned_it(cache: mmcache.Cache, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.jpg").write_bytes(encoded(kind="JPEG", exif=exif))
    turned = mmcache.cached(cache=cache)(lambda path: ImageOps.exif_transpose(decoded(path)))
    for _ in range(2):
        given = turned(tmp_path / "a.jpg")
        assert given.size == picture(1).size[::-1]
        assert difference(ImageOps.exif_transpose(decoded(tmp_path / "a.jpg")), given) == ""
        assert 0x0112 not in given.getexif()
    assert counts(cache) == (1, 1, 0, 0)


@pytest.mark.parametrize("form", ["path", "data url", "content with a data url", "content with bytes"])
def test_a_truncated_picture_raises_what_the_plain_loader_raises_each_time(
    cache: mmcache.Cache, tmp_path: Path, form: str, decoded_files: list[object]
) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(kind="JPEG")[:-400])
    source = in_forms(tmp_path / "a.jpg")[form]
    cached = mmcache.cached(cache=cache)(loader)
    with pytest.raises(OSError, match="truncated") as plain:
        loader(source())
    once = len(decoded_files)
    for _ in range(2):
        with pytest.raises(OSError, match="truncated") as found:
            cached(source())
        assert str(found.value) == str(plain.value)
    assert len(decoded_files) == 3 * once, "an error is never stored, and no call runs twice"
    assert cache.cache_info().items == 0


def test_pillows_switches_are_part_of_the_key_of_texts(cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    text = base64.b64encode(encoded(kind="JPEG")[:-400]).decode()
    cached = mmcache.cached(cache=cache)(loader)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert difference(loader(text), cached(text)) == ""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with pytest.raises(OSError, match="truncated"):
        cached(text)


def test_a_lazily_opened_image_in_content_is_neither_loaded_nor_missed(cache: mmcache.Cache, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    cached = mmcache.cached(cache=cache)(loader)
    images = [Image.open(tmp_path / "a.png") for _ in range(2)]
    for image in images:
        assert difference(loader(picture(1)), cached({"image": image})) == ""
    assert counts(cache) == (1, 1, 0, 0)
    assert getattr(images[1], "fp", None) is not None, "a hit decodes nothing"
    for image in images:
        image.close()


def test_a_lazily_opened_output_is_given_and_not_stored(cache: mmcache.Cache, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded())
    cached = mmcache.cached(cache=cache)(lambda path: Image.open(path))
    with cached(tmp_path / "a.png") as image:
        assert image.format == "PNG"
    assert "PngImageFile" in next(iter(cache.cache_info().bypass_reasons))


def test_tenants_and_secrets_are_apart(tmp_path: Path) -> None:
    text = base64_of()
    made = set()
    for namespace, secret in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        with mmcache.Cache("16MiB", namespace=namespace, secret=secret) as cache:
            for source in (text, {"image": text}):
                mmcache.cached(cache=cache)(loader)(source)
            made.add(tuple(cache.memory._lru))
    assert len(made) == 3
    assert len({key for keys in made for key in keys}) == 6


def test_a_batch_function_of_content_is_looked_up_one_by_one(cache: mmcache.Cache) -> None:
    sizes: list[int] = []

    def batch(contents: list[Any]) -> dict[str, Any]:
        sizes.append(len(contents))
        return {"sizes": [loader(content).size for content in contents]}

    cached = mmcache.cached(cache=cache, version="1", layout={"sizes": mmcache.layout.PerImageList()})(batch)
    contents = [{"image": base64_of(seed), "max_side": 8 * seed} for seed in (1, 2, 3)]
    assert cached(contents) == cached(contents) == {"sizes": [(4, 4), (8, 8), (12, 12)]}
    assert sizes == [1, 1, 1]


def test_threads_and_tasks_load_a_picture_once(cache: mmcache.Cache, runs: list[object]) -> None:
    entered, content = threading.Barrier(4), {"type": "image", "image": base64_of()}
    cached = mmcache.cached(cache=cache)(loader)
    expected = loader(content)
    runs.clear()
    found: list[str] = []

    def load() -> None:
        entered.wait(60)
        found.append(difference(expected, cached(dict(content))))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(runs)) == ([""] * 4, 1)

    async def aloader(content: Any) -> Image.Image:
        await asyncio.sleep(0)
        return loader(content)

    acached = mmcache.cached(cache=cache)(aloader)

    async def gathered() -> list[Any]:
        return list(await asyncio.gather(*(acached(dict(content)) for _ in range(4))))

    assert [difference(expected, given) for given in asyncio.run(gathered())] == [""] * 4
    assert len(runs) == 2


# What `install` covers: a stand-in for the package, which is tried itself in tests/integration

PACKAGE = """
from tests.test_loaders import loader
__version__ = "1.0"
def fetch_image(ele, image_patch_size=14):
    return loader(ele, image_patch_size // 7)
def process_vision_info(contents):
    return [fetch_image(content) for content in contents]
"""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    whole, module = types.ModuleType("qwen_vl_utils"), types.ModuleType("qwen_vl_utils.vision_process")
    exec(PACKAGE, vars(module))
    vars(whole).update({name: value for name, value in vars(module).items() if not name.startswith("__")})
    vars(whole)["__version__"] = "1.0"
    monkeypatch.setitem(sys.modules, "qwen_vl_utils", whole)
    monkeypatch.setitem(sys.modules, "qwen_vl_utils.vision_process", module)
    return module


def test_an_installation_covers_a_loader_and_puts_it_back(
    cache: mmcache.Cache, package: Any, runs: list[object]
) -> None:
    plain, whole = package.fetch_image, sys.modules["qwen_vl_utils"]
    contents = [{"image": base64_of(seed)} for seed in (1, 2, 1)]
    expected = package.process_vision_info(contents)
    runs.clear()
    with mmcache.install(cache):
        assert package.fetch_image is vars(whole)["fetch_image"] is not plain
        for _ in range(2):
            assert difference(expected, package.process_vision_info(contents)) == ""
    assert len(runs) == 2
    assert counts(cache) == (2, 4, 0, 0)
    assert package.fetch_image is vars(whole)["fetch_image"] is plain


def test_a_package_that_is_loaded_later_is_covered_by_the_next_call_of_a_processor(
    cache: mmcache.Cache, package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = package.fetch_image
    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    with monkeypatch.context() as absent:
        absent.delitem(sys.modules, "qwen_vl_utils.vision_process")
        installation = mmcache.install(cache)
    with installation:
        assert package.fetch_image is plain
        processor(picture(1))
        assert package.fetch_image is not plain
    assert package.fetch_image is plain


def test_a_loader_that_somebody_patched_since_stays(cache: mmcache.Cache, package: Any) -> None:
    with mmcache.install(cache):
        package.fetch_image = mine = lambda ele: ele
    assert package.fetch_image is mine


def test_a_loader_that_is_cached_already_keeps_its_cache(cache: mmcache.Cache, package: Any) -> None:
    with mmcache.Cache("16MiB") as own:
        package.fetch_image = mine = mmcache.cached(cache=own)(package.fetch_image)
        with mmcache.install(cache):
            assert package.fetch_image is mine
        assert package.fetch_image is mine


def test_a_loader_that_cannot_be_identified_stays_plain_with_one_warning(
    cache: mmcache.Cache, package: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lock = threading.Lock()
    package.fetch_image = guarded = lambda ele: lock and 3
    with mmcache.install(cache):
        assert package.fetch_image is guarded
    assert [record.levelname for record in caplog.records if "'lock'" in record.getMessage()] == ["WARNING"]


def test_a_half_imported_package_and_a_fault_harm_nobody(cache: mmcache.Cache, package: Any) -> None:
    plain = package.fetch_image
    del package.fetch_image
    loaders = Loaders(cache)
    loaders.cover()
    package.fetch_image = plain
    loaders.after_fork_in_child()
    loaders.cover()
    assert package.fetch_image is not plain
    loaders.close()
    assert package.fetch_image is plain
    loaders.cover()
    assert package.fetch_image is plain, "closed"
    broken = Loaders(cache)
    broken._lock = None  # type: ignore[assignment]
    broken.cover()
    assert cache.cache_info().errors == 1


def test_frames_and_videos_are_none_of_its_business(cache: mmcache.Cache, package: Any) -> None:
    def fetch_video(ele: Any) -> int:
        return 3

    package.fetch_video = fetch_video
    with mmcache.install(cache):
        assert package.fetch_video is fetch_video
