"""Processors that are given pictures as text: looked up before anything is decoded, and exact as ever."""

import base64
import gc
import io
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageFile
from transformers import CLIPImageProcessor, CLIPImageProcessorPil, Idefics3ImageProcessorPil, image_processing_backends
from transformers import image_processing_base as base_module
from transformers.image_utils import load_image

import mmcache
from mmcache import aliases
from mmcache.aliases import Aliases, Content
from mmcache.layout.compare import difference
from tests.pictures import counted, picture

# torchvision's own loader, which transformers uses, is about to move to another package.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision")

SIZES: dict[str, Any] = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
BACKENDS: dict[str, Any] = {"torchvision": CLIPImageProcessor, "pil": CLIPImageProcessorPil}


def clip(**options: Any) -> Any:
    return CLIPImageProcessorPil(**SIZES, **options)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("64MiB", name="texts", verify_rate=0) as fresh:
        yield fresh


@pytest.fixture(params=list(BACKENDS))
def plain(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param](**SIZES)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that one of the two loaders of transformers is given."""
    texts: list[str] = []
    for module, name in ((base_module, "load_image"), (image_processing_backends, "load_image_as_tensor")):
        original = getattr(module, name)

        def loading(text: str, original: Any = original, **options: Any) -> Any:
            texts.append(text)
            return original(text, **options)

        # Invisible to the identity of code: counting must not make another loader of it.
        loading.__mmcache_original__ = original  # type: ignore[attr-defined]
        monkeypatch.setattr(module, name, loading)
    return texts


def encoded(seed: int = 1, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(seed).save(file, kind, **options)
    return file.getvalue()


def written(path: Path, seed: int = 1, kind: str = "PNG", **options: Any) -> str:
    path.write_bytes(encoded(seed, kind, **options))
    return str(path)


def outcome(processor: Any, images: Any) -> Any:
    """Return what a processor gives, or its error as type and text without addresses."""
    try:
        return processor(images, return_tensors="pt")
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error), re.sub("0x[0-9a-f]+", "0x", str(error))


def same(processor: Any, wrapped: Any, images: Any) -> None:
    assert difference(outcome(processor, images), outcome(wrapped, images)) == ""


def counts(cache: mmcache.Cache) -> tuple[int, int, int, int]:
    info = cache.cache_info()
    return info.misses, info.hits, info.bypassed, info.errors


def forms(path: str) -> dict[str, str]:
    text = base64.b64encode(Path(path).read_bytes()).decode()
    return {"path": path, "base64": text, "data url": f"data:image/png;base64,{text}"}


@pytest.mark.parametrize("form", ["path", "base64", "data url"])
def test_a_hit_loads_nothing(cache: mmcache.Cache, plain: Any, loads: list[str], tmp_path: Path, form: str) -> None:
    text = forms(written(tmp_path / "a.png"))[form]
    wrapped = mmcache.wrap(plain, cache)
    expected = plain(text, return_tensors="pt")
    loads.clear()
    for _ in range(3):
        assert difference(expected, wrapped(text, return_tensors="pt")) == ""
    assert loads == [text]
    assert counts(cache) == (1, 2, 0, 0)


def test_pictures_of_one_content_share_one_item(
    cache: mmcache.Cache, plain: Any, loads: list[str], tmp_path: Path
) -> None:
    texts = [
        written(tmp_path / "a.png"),
        written(tmp_path / "b.png"),
        written(tmp_path / "a.webp", kind="WEBP", lossless=True),
    ]
    if plain.backend == "pil":
        texts.append(written(tmp_path / "a.bmp", kind="BMP"))
    texts += [forms(texts[0])["base64"], forms(texts[2])["data url"]]
    wrapped = mmcache.wrap(plain, cache)
    for text in texts:
        same(plain, wrapped, text)
    assert counts(cache) == (1, len(texts) - 1, 0, 0)
    loads.clear()
    for text in texts:
        wrapped(text, return_tensors="pt")
    assert loads == []


def test_an_image_that_was_loaded_by_somebody_else_shares_the_item_too(cache: mmcache.Cache, tmp_path: Path) -> None:
    wrapped = mmcache.wrap(clip(), cache)
    wrapped(written(tmp_path / "a.png"), return_tensors="pt")
    wrapped(picture(1), return_tensors="pt")
    assert counts(cache) == (1, 1, 0, 0)


def test_batches_of_texts_and_images_are_joined_and_looked_up_one_by_one(
    cache: mmcache.Cache, plain: Any, loads: list[str], tmp_path: Path
) -> None:
    paths = [written(tmp_path / f"{seed}.png", seed) for seed in (1, 2, 3)]
    wrapped = mmcache.wrap(plain, cache)
    for batch in (paths, [*paths, paths[0]], paths[::-1], [paths[2]]):
        same(plain, wrapped, batch)
    assert counts(cache)[0] == 3
    loads.clear()
    wrapped([*paths, paths[0]], return_tensors="pt")
    assert loads == []


def test_a_picture_of_a_batch_that_is_missing_is_the_only_one_that_is_loaded(
    cache: mmcache.Cache, plain: Any, loads: list[str], tmp_path: Path
) -> None:
    paths = [written(tmp_path / f"{seed}.png", seed) for seed in (1, 2, 3)]
    wrapped = mmcache.wrap(plain, cache)
    wrapped(paths[:2], return_tensors="pt")
    loads.clear()
    with counted(type(plain)) as runs:
        wrapped(paths, return_tensors="pt")
    assert loads == [paths[2]]
    assert runs.images == 1


def test_nested_samples_of_texts_are_looked_up(cache: mmcache.Cache, tmp_path: Path, loads: list[str]) -> None:
    plain: Any = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    wrapped = mmcache.wrap(plain, cache)
    paths = [written(tmp_path / f"{seed}.png", seed) for seed in (1, 2, 3)]
    samples = [[paths[0], paths[1]], [paths[2]]]
    same(plain, wrapped, samples)
    loads.clear()
    assert difference(plain(samples, return_tensors="pt"), wrapped(samples, return_tensors="pt")) == ""
    assert len(loads) == 3, "those of the plain call"
    assert counts(cache) == (3, 3, 0, 0)


def test_a_picture_is_turned_upright_as_its_loader_does_it(cache: mmcache.Cache, plain: Any, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = written(tmp_path / "turned.jpg", kind="JPEG", exif=exif)
    upright = written(tmp_path / "upright.jpg", kind="JPEG")
    wrapped = mmcache.wrap(plain, cache)
    for text in (turned, upright, turned, upright):
        same(plain, wrapped, text)
    assert counts(cache) == (2, 2, 0, 0)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "I;16"])
def test_modes_are_converted_as_the_loader_does_it(cache: mmcache.Cache, plain: Any, tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / "a.png")
    image = picture(1).convert("RGBA")
    image.putalpha(picture(2).convert("L"))
    (image.convert("L").convert("I;16") if mode == "I;16" else image.convert(mode)).save(path)
    wrapped = mmcache.wrap(plain, cache)
    for _ in range(2):
        same(plain, wrapped, path)
    assert counts(cache) == (1, 1, 0, 0)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # by the loader of transformers
def test_truncated_and_foreign_files_raise_what_the_plain_processor_raises(
    cache: mmcache.Cache, plain: Any, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(encoded(kind="JPEG")[:-400])
    (tmp_path / "page.jpg").write_bytes(b"<html>")
    wrapped = mmcache.wrap(plain, cache)
    for text in (str(broken), str(tmp_path / "page.jpg"), str(tmp_path / "absent.png"), "no picture", ""):
        for _ in range(2):
            same(plain, wrapped, text)
    same(plain, wrapped, [written(tmp_path / "a.png"), str(broken)])
    gc.collect()  # while the filter holds
    assert cache.cache_info().errors == 0


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # by the loader of transformers
def test_pillows_switches_are_part_of_an_alias(
    cache: mmcache.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = clip()
    wrapped = mmcache.wrap(plain, cache)
    path = tmp_path / "broken.jpg"
    path.write_bytes(encoded(kind="JPEG")[:-400])
    with monkeypatch.context() as tolerant:
        tolerant.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        for _ in range(2):
            same(plain, wrapped, str(path))
        assert cache.cache_info().hits == 1
    same(plain, wrapped, str(path))
    with monkeypatch.context() as strict:
        strict.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        same(plain, wrapped, written(tmp_path / "a.png"))
    gc.collect()  # while the filter holds


def test_a_url_is_a_bypass_with_its_reason(cache: mmcache.Cache, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = mmcache.wrap(plain, cache)
    for text in ("ftp://x.org/a.png", "file:///a.png"):
        same(plain, wrapped, text)
    assert cache.cache_info().bypass_reasons == {"a URL names no content": 2}


def test_a_text_of_a_class_of_its_own_is_a_bypass(cache: mmcache.Cache, tmp_path: Path) -> None:
    class Own(str):
        __slots__ = ()

    plain = clip()
    same(plain, mmcache.wrap(plain, cache), Own(written(tmp_path / "a.png")))
    assert counts(cache) == (0, 0, 1, 0)


def test_a_file_that_changes_between_calls_is_another_picture(cache: mmcache.Cache, plain: Any, tmp_path: Path) -> None:
    wrapped = mmcache.wrap(plain, cache)
    for seed in (1, 2, 1, 2):
        same(plain, wrapped, written(tmp_path / "a.png", seed))
    assert counts(cache) == (2, 2, 0, 0)


def test_a_file_that_changes_while_it_is_loaded_leaves_no_alias(
    cache: mmcache.Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = clip()
    wrapped = mmcache.wrap(plain, cache)
    path = written(tmp_path / "a.png", 1)
    original = CLIPImageProcessorPil.fetch_images

    def swapping(self: Any, text: str) -> Any:
        written(tmp_path / "a.png", 2)
        return original(self, text)

    swapping.__mmcache_original__ = original  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(base_module.ImageProcessingMixin, "fetch_images", swapping)
        wrapped(path, return_tensors="pt")
    same(plain, wrapped, written(tmp_path / "a.png", 1))
    same(plain, wrapped, written(tmp_path / "a.png", 2))


def test_a_file_that_changed_after_its_item_was_evicted_is_no_wrong_item(
    cache: mmcache.Cache, plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = mmcache.wrap(plain, cache)
    path = written(tmp_path / "a.png", 1)
    wrapped(path, return_tensors="pt")
    one = plain(path, return_tensors="pt")
    cache.memory.clear()
    get = Aliases.get

    def changing(self: Aliases, key: bytes) -> Content | None:
        content = get(self, key)
        written(tmp_path / "a.png", 2)
        return content

    with monkeypatch.context() as patched:
        patched.setattr(Aliases, "get", changing)
        other = wrapped(path, return_tensors="pt")
    assert difference(plain(path, return_tensors="pt"), other) == ""
    assert "changed meanwhile" in next(iter(cache.cache_info().bypass_reasons))
    assert difference(one, wrapped(written(tmp_path / "a.png", 1), return_tensors="pt")) == ""
    assert cache.cache_info().errors == 0


def test_an_item_that_was_evicted_is_made_again_from_its_alias(
    cache: mmcache.Cache, plain: Any, loads: list[str], tmp_path: Path
) -> None:
    wrapped = mmcache.wrap(plain, cache)
    path = written(tmp_path / "a.png")
    wrapped(path, return_tensors="pt")
    cache.memory.clear()
    loads.clear()
    for _ in range(2):
        wrapped(path, return_tensors="pt")
    assert loads == [path]
    same(plain, wrapped, path)


def test_another_loader_is_another_alias(
    cache: mmcache.Cache, plain: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped = mmcache.wrap(plain, cache)
    path = written(tmp_path / "a.png")
    same(plain, wrapped, path)
    for module, name in ((base_module, "load_image"), (image_processing_backends, "load_image_as_tensor")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda text, original=original: original(text.replace("a.png", "b.png")))
    written(tmp_path / "b.png", 2)
    same(plain, wrapped, path)


def test_options_and_processors_share_aliases_and_no_items(
    cache: mmcache.Cache, loads: list[str], tmp_path: Path
) -> None:
    path = written(tmp_path / "a.png")
    plain, other = clip(), clip(do_normalize=False)
    for processor in (plain, other):
        wrapped = mmcache.wrap(processor, cache)
        assert difference(processor(path, return_tensors="pt"), wrapped(path, return_tensors="pt")) == ""
    assert counts(cache) == (2, 0, 0, 0)


def test_a_class_of_somebodys_own_loads_as_it_likes(cache: mmcache.Cache, tmp_path: Path) -> None:
    class Own(CLIPImageProcessorPil):
        def fetch_images(self, text: Any) -> Any:
            return picture(7) if isinstance(text, str) else text

    plain: Any = Own(**SIZES)
    wrapped = mmcache.wrap(plain, cache)
    for _ in range(2):
        same(plain, wrapped, written(tmp_path / "a.png"))
    assert cache.cache_info().bypass_reasons == {"images given as text, to a loader that was not tried": 2}


def test_tenants_and_secrets_have_keys_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    path = written(tmp_path / "a.png")
    named, items = set(), set()
    for namespace, secret in (("a", "x"), ("b", "x"), ("a", "y")):
        with mmcache.Cache("16MiB", namespace=namespace, secret=secret, verify_rate=0) as cache:
            wrapped = mmcache.wrap(clip(), cache)
            for _ in range(2):
                wrapped(path, return_tensors="pt")
            assert counts(cache) == (1, 1, 0, 0)
            named |= set(cache.aliases._contents)
            items |= set(cache.memory._lru)
    assert (len(named), len(items)) == (3, 3)


def test_verified_outputs_are_those_of_the_plain_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    paths = [written(tmp_path / f"{seed}.png", seed) for seed in (1, 2, 3)]
    with mmcache.Cache("16MiB", verify_rate=1) as cache:
        plain = clip()
        wrapped = mmcache.wrap(plain, cache)
        for _ in range(3):
            same(plain, wrapped, paths)
        info = cache.cache_info()
        assert info.verified >= 3
        assert (info.mismatches, info.errors) == (0, 0)


def test_an_installation_serves_texts_after_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.png")
    plain = clip()
    expected = plain(path, return_tensors="pt")
    with mmcache.Cache("16MiB", verify_rate=0) as cache, mmcache.install(cache):
        assert difference(expected, plain(path, return_tensors="pt")) == ""
        cache.settle()
        for _ in range(2):
            assert difference(expected, plain(path, return_tensors="pt")) == ""
        assert counts(cache) == (1, 1, 1, 0)


def test_a_file_that_is_gone_before_its_background_trial_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plain = written(tmp_path / "a.png"), clip()
    original = load_image

    def removing(text: str) -> Any:
        image = original(text)
        Path(path).unlink()
        return image

    removing.__mmcache_original__ = original  # type: ignore[attr-defined]
    with mmcache.Cache("16MiB", verify_rate=0) as cache, mmcache.install(cache):
        plain(path, return_tensors="pt")
        cache.settle()
        monkeypatch.setattr(base_module, "load_image", removing)
        plain(path, return_tensors="np", do_normalize=None)  # of a structure without a trial, and known by its alias
        info = cache.cache_info()
        assert (info.bypassed, info.errors) == (2, 0)


def test_stages_take_paths(cache: mmcache.Cache, tmp_path: Path) -> None:
    path = written(tmp_path / "a.png")
    plain = clip()
    with mmcache.Stages(plain, cache=cache, pixels="now") as stages:
        for _ in range(2):
            output = stages.execute([stages.add(path)])
            assert difference(plain([path], return_tensors="pt"), output) == ""
        Path(path).unlink()
        assert cache.cache_info().misses == 1


def test_threads_with_one_path_process_it_once(cache: mmcache.Cache, tmp_path: Path) -> None:
    path = written(tmp_path / "a.png")
    plain = clip()
    wrapped = mmcache.wrap(plain, cache)
    wrapped(picture(9), return_tensors="pt")
    expected = plain(path, return_tensors="pt")
    together, found = threading.Barrier(4), []

    def run() -> None:
        together.wait(60)
        found.append(difference(expected, wrapped(path, return_tensors="pt")))

    threads = [threading.Thread(target=run) for _ in range(4)]
    with counted(CLIPImageProcessorPil) as runs:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [""] * 4
    assert runs.images == 1


# The aliases themselves


def test_aliases_are_bounded_and_forget_the_one_that_was_used_least_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "_MOST_ALIASES", 2)
    known = Aliases()
    for name in (b"a", b"b"):
        known.put(name, Content(name, ("image", "RGB", False), (1, 1)))
    assert known.get(b"a") is not None
    known.put(b"c", Content(b"c", ("image", "RGB", False), (1, 1)))
    assert [known.get(name) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    known.after_fork_in_child()
    assert known.get(b"a") is None
    known.put(b"a", Content(b"a", ("image", "RGB", False), (1, 1)))
    known.clear()
    assert known.get(b"a") is None


def test_clearing_a_cache_forgets_its_aliases(cache: mmcache.Cache, loads: list[str], tmp_path: Path) -> None:
    wrapped = mmcache.wrap(clip(), cache)
    path = written(tmp_path / "a.png")
    wrapped(path, return_tensors="pt")
    cache.clear()
    loads.clear()
    wrapped(path, return_tensors="pt")
    assert loads == [path]
    assert torch.is_tensor(wrapped(path, return_tensors="pt")["pixel_values"])
