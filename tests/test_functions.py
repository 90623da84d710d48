"""`cached` on functions: what is computed once, what is never kept, and what is refused when it is decorated."""

import asyncio
import functools
import io
import os
import random
import sqlite3
import sys
import threading
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BatchFeature, CLIPImageProcessorPil

import mmcache
from mmcache.layout import Batched, Field, Padded, Same
from mmcache.layout.compare import difference

calls: list[Any] = []
"""One entry for each real call; methods of a global list are what a cached function may name."""


@pytest.fixture(autouse=True)
def _no_calls_yet() -> Iterator[None]:
    calls.clear()
    yield
    calls.clear()


@pytest.fixture
def cache() -> Iterator[mmcache.Cache]:
    with mmcache.Cache("64MiB") as fresh:
        yield fresh


def photo(seed: int = 0, height: int = 8, width: int = 12) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def module_of(source: str, name: str = "script_under_test", **names: Any) -> types.ModuleType:
    """A module without a version, with a list of calls of its own that is no part of what its functions name."""
    module = types.ModuleType(name)
    vars(module).update(names)
    exec(compile(source, f"{name}.py", "exec"), vars(module))
    return module


# Every kind of output


Grids = namedtuple("Grids", ["height", "width"])


def every_kind_of_output(image: Image.Image) -> Any:
    array = np.asarray(image)
    return {
        "tensor": torch.from_numpy(array.copy()),
        "half": torch.ones(2, 3, dtype=torch.bfloat16) * -0.0,
        "mask": torch.tensor([True, False]),
        "array": np.asfortranarray(array.astype(">f4")),
        "nan": float("nan"),
        "scalar": np.float32(2.5),
        "numbers": [1, 2.0, True, 3j, None, "text", b"bytes"],
        "tuple": (1, (2, [3, {"deep": np.int64(4)}])),
        "named": Grids(3, torch.tensor([4])),
        "ordered": OrderedDict(b=1, a=2),
        "feature": BatchFeature({"pixel_values": torch.zeros(0, 3)}),
        "dtype": torch.float16,
    }


def test_a_hit_gives_every_kind_of_output_bit_for_bit(cache: mmcache.Cache) -> None:
    cached = mmcache.cached(cache=cache)(every_kind_of_output)
    plain = every_kind_of_output(photo())
    first, second = cached(photo()), cached(photo())
    assert difference(plain, first) == ""
    assert difference(plain, second) == ""
    assert second["array"].flags.f_contiguous
    info = cached.cache_info()
    assert (info.hits, info.misses, info.bypassed, info.errors) == (1, 1, 0, 0)


def test_outputs_that_the_caller_writes_to_do_not_change_the_next_hit(cache: mmcache.Cache) -> None:
    cached = mmcache.cached(cache=cache)(every_kind_of_output)
    for _ in range(3):
        output = cached(photo())
        assert difference(every_kind_of_output(photo()), output) == ""
        output["tensor"].zero_()
        output["array"][...] = 0
        output["numbers"].clear()
        output["tuple"][1][1][1]["deep"] = None
        output["named"].width.fill_(9)
        output["feature"]["pixel_values"] = None
        del output["nan"]
    assert cached.cache_info().hits == 2


def returns_its_input(array: Any) -> Any:
    calls.append(0)
    return {"same": array, "view": array[:2]}


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["array", "tensor"])
def test_an_output_that_aliases_the_input_is_independent_of_it(cache: mmcache.Cache, make: Any) -> None:
    cached = mmcache.cached(cache=cache, version="1")(returns_its_input)
    source = make((4, 4))
    first = cached(source)
    first["same"][...] = 5
    source[...] = 7
    again = cached(make((4, 4)))
    assert len(calls) == 1
    assert difference({"same": make((4, 4)), "view": make((4, 4))[:2]}, again) == ""


def test_a_view_of_a_large_array_pins_only_itself(cache: mmcache.Cache) -> None:
    def crop(array: Any) -> Any:
        return np.zeros(1 << 22, np.uint8)[:10], torch.zeros(1 << 22, dtype=torch.uint8)[:10]

    cached = mmcache.cached(cache=cache)(crop)
    cached(np.zeros(3))
    assert cached.cache_info().items == 1
    assert cached.cache_info().currsize < 10_000


# The decorator


def test_bare_and_with_options_give_a_plain_function_with_attributes(cache: mmcache.Cache) -> None:
    def resize(image: Image.Image, size: int = 3, *, mode: str = "x") -> int:
        """Resize it."""
        return size

    bare = mmcache.cached(resize)
    optioned = mmcache.cached(cache=cache, source="image", version="3")(resize)
    for function in (bare, optioned):
        assert isinstance(function, types.FunctionType)
        assert function.__wrapped__ is resize
        assert (function.__name__, function.__doc__) == ("resize", "Resize it.")
        assert function(photo(), 4) == 4
    assert optioned.cache is cache
    assert bare.cache is not cache
    assert optioned.cache_info().misses == 1
    optioned.cache_clear()
    assert optioned.cache_info().items == 0
    optioned(photo(), 4)
    assert optioned.cache_info().misses == 2


def test_positions_keywords_and_defaults_are_one_call(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache)
    def resize(image: Any, size: int = 3, *, mode: str = "x") -> tuple[int, str]:
        return size, mode

    picture = photo()
    for output in (resize(picture), resize(picture, 3), resize(image=picture, size=3), resize(picture, mode="x")):
        assert output == (3, "x")
    assert resize.cache_info().misses == 1
    assert resize(picture, 4) == (4, "x")
    assert resize(picture, True) == (True, "x")
    assert resize(picture, 3.0) == (3.0, "x")  # type: ignore[arg-type]
    assert resize.cache_info().misses == 4


def test_source_names_the_image_argument(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, source="image")
    def ask(prompt: str, image: Any) -> tuple[str, int]:
        return prompt, image.width

    assert ask("a", photo(0)) == ("a", 12)
    assert ask("b", photo(0)) == ("b", 12)
    assert ask(image=photo(0), prompt="a") == ("a", 12)
    assert (ask.cache_info().hits, ask.cache_info().misses) == (1, 2)


def test_wrong_use_is_refused_with_what_was_given(cache: mmcache.Cache) -> None:
    def generator(image: Any) -> Iterator[int]:
        yield 1

    async def agenerator(image: Any) -> Any:
        yield 1

    for bad in (3, "text", generator, agenerator, functools.partial(generator), Image.Image):
        with pytest.raises(mmcache.BadArgument, match="function"):
            mmcache.cached(bad)  # type: ignore[arg-type]
    with pytest.raises(mmcache.BadArgument, match="'picture'"):
        mmcache.cached(source="picture")(lambda image: image)
    with pytest.raises(mmcache.BadArgument):
        mmcache.cached(lambda: 3)
    with pytest.raises(mmcache.BadArgument, match="cache"):
        mmcache.cached(cache=object())(lambda image: image)  # type: ignore[call-overload]


# What a function is


def same_key_before_and_after(source: str, change: str, argument: Any = None) -> bool:
    """Whether a function called before and after a change in its module was computed only once."""
    with mmcache.Cache("16MiB") as cache:
        module = module_of(source)
        cached = mmcache.cached(cache=cache)(module.f)
        image = argument if argument is not None else np.zeros((2, 2, 3), np.uint8)
        first = cached(image)
        assert difference(first, cached(image)) == ""
        assert cached.cache_info().misses == 1, cached.cache_info()
        exec(change, vars(module))
        expected = module.f(image)
        assert difference(expected, cached(image)) == "", f"a wrong hit after {change}"
        return cached.cache_info().misses == 1


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("S = 1\ndef f(i): return S", "S = 2"),
        ("S = 1\ndef f(i): return S", "S = 1.0"),
        ("S = 1\ndef f(i): return S", "S = True"),
        ("S = 0.0\ndef f(i): return S", "S = -0.0"),
        ("S = {'a': [1, 2]}\ndef f(i): return S['a'][1]", "S['a'][1] = 3"),
        ("S = [1]\ndef f(i): return list(S)", "S.append(2)"),
        ("import numpy as np\nS = np.zeros(2)\ndef f(i): return S.sum()", "S[0] = 4"),
        ("import torch\nS = torch.zeros(2)\ndef f(i): return S + 1", "S[0] = 4"),
        ("def g(i): return 1\ndef f(i): return g(i)", "def g(i): return 2"),
        ("def g(i): return 1\ndef f(i): return [g(i) for _ in range(2)]", "def g(i): return 2"),
        ("def g(i): return 1\ndef f(i): return g(i)", "g.__code__ = (lambda i: 2).__code__"),
        ("S = 1\ndef h(): return S\ndef g(): return h()\ndef f(i): return g()", "S = 2"),
        ("def f(i, k=1): return k", "f.__defaults__ = (2,)"),
        ("def f(i, *, k=1): return k", "f.__kwdefaults__ = {'k': 2}"),
        ("def f(i, *, k=[1]): return list(k)", "f.__kwdefaults__['k'].append(2)"),
        ("def f(i): return 1", "f.__code__ = (lambda i: 2).__code__"),
        ("def m():\n  s = 1\n  def f(i): return s\n  def put(v):\n    nonlocal s\n    s = v\n  return f, put\nf, put = m()", "put(2)"),
        ("def m():\n  s = [1]\n  def f(i): return list(s)\n  return f, s\nf, s = m()", "s.append(2)"),
        ("class C:\n  s = 0\ndef f(i): return C.s", "C.s = 1"),
        ("class C:\n  s = 0\ndef f(i): return C.s", "C.s = 0.0"),
        ("class C:\n  s = 1\ndef f(i): return C.s", "C.s = True"),
        ("class C:\n  s = [0]\ndef f(i): return list(C.s)", "C.s[0] = 0.0"),
        ("class C:\n  s = {'a': (1, [2])}\ndef f(i): return C.s['a'][1][0]", "C.s['a'][1][0] = 3"),
        ("class B:\n  def g(self): return 1\nclass C(B): pass\ndef f(i): return C().g()", "B.g = lambda self: 2"),
        ("class C:\n  @property\n  def g(self): return 1\ndef f(i): return C().g", "C.g = property(lambda self: 2)"),
        ("class C:\n  @staticmethod\n  def g(): return 1\ndef f(i): return C.g()", "C.g = staticmethod(lambda: 2)"),
        ("import functools\ndef g(a, b): return a + b\nh = functools.partial(g, 1)\ndef f(i): return h(2)",
         "h = functools.partial(g, 2)"),
        ("import functools, numpy\nS = 1\n@functools.wraps(numpy.mean)\ndef g(i): return S\ndef f(i): return g(i)", "S = 2"),
        ("import functools\nS = 1\n@functools.lru_cache\ndef g(s): return s\ndef f(i): return g(S)", "S = 2"),
        ("def f(i): return len(i.shape)", "len = lambda _: 99"),
        ("S = 1\ndef f(i): return (lambda: S)()", "S = 2"),
        ("def f(i): return f.s\nf.s = 1", "f.s = 2"),
        ("def g(): return g.s\ng.s = [1]\ndef f(i): return list(g())", "g.s.append(2)"),
        ("S = 1\ndef f(i):\n  class C:\n    s = S\n  return C.s", "S = 2"),
    ],
)  # fmt: skip
def test_whatever_its_code_names_is_part_of_the_key(source: str, change: str) -> None:
    assert not same_key_before_and_after(source, change)


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("S = 1\nUNUSED = 1\ndef f(i): return S", "UNUSED = 2"),
        ("S = [1]\ndef f(i): return list(S)", "S = [1]"),
        ("def g(i): return 1\ndef f(i): return g(i)", "def g(i): return 1"),
        ("class C:\n  s = 0\ndef f(i): return C.s", "C().__reduce_ex__(2)"),
        ("class C:\n  __slots__ = ('x',)\n  def __init__(self): self.x = 1\ndef f(i): return C().x", "pass"),
        ("import typing\nclass N(typing.NamedTuple):\n  x: int = 1\ndef f(i): return N()", "pass"),
        ("def f(i): return i[..., 0]", "pass"),
        ("def f(i): return i.shape[0] in {'a', 2, 3}", "pass"),
        ("import enum\nclass E(enum.Enum):\n  A = 1\ndef f(i): return E.A.value", "pass"),
        ("import dataclasses\n@dataclasses.dataclass\nclass D:\n  x: int = 3\ndef f(i): return D().x", "pass"),
        ("import abc\nclass B(abc.ABC):\n  @abc.abstractmethod\n  def g(self): ...\nclass C(B):\n"
         "  def g(self): return 1\ndef f(i): return C().g()", "pass"),
        ("import math\nfrom torch import stack\nfrom numpy import float32\nimport torch.nn.functional as F\n"
         "from PIL import Image\ndef f(i): return math.pi, float32(1), stack and F and Image and 1", "pass"),
        ("def f(i):\n  from PIL import Image\n  import torch.nn.functional as F\n  return Image and F and 1", "pass"),
        ("import logging\nL = logging.getLogger('x')\ndef f(i): return L.name", "pass"),
    ],
)  # fmt: skip
def test_what_changes_no_output_changes_no_key(source: str, change: str) -> None:
    assert same_key_before_and_after(source, change)


@pytest.mark.parametrize(
    ("source", "names", "culprit"),
    [
        ("def f(i): return mod.X", {"mod": types.ModuleType("my_settings")}, "my_settings"),
        ("def f(i):\n  import my_settings\n  return my_settings.X", {}, "my_settings"),
        ("def f(i):\n  from my_settings import X\n  return X", {}, "my_settings"),
        ("def f(i): return model(i)", {"model": torch.nn.Linear(2, 2)}, "'model'.*Linear"),
        ("def f(i): return connection", {"connection": sqlite3.connect(":memory:")}, "'connection'.*Connection"),
        ("def f(i): return lock", {"lock": threading.Lock()}, "'lock'"),
        ("def f(i): return config", {"config": {"models": [torch.nn.Linear(2, 2)]}}, "'config'.*Linear"),
        ("def g(): return model\ndef f(i): return g()", {"model": torch.nn.Linear(2, 2)}, "'model'.*Linear"),
        ("def f(i): return method()", {"method": io.BytesIO().read}, "'method'"),
        ("class C:\n  lock = {'l': LOCK}\ndef f(i): return C.lock", {"LOCK": threading.Lock()}, "C.lock.*lock"),
        ("def f(i, m=MODEL): return m", {"MODEL": torch.nn.Linear(2, 2)}, "default.*Linear"),
        ("def mk(m):\n  def f(i): return m\n  return f\nf = mk(MODEL)", {"MODEL": torch.nn.Linear(2, 2)}, "'m'.*Linear"),
        ("class C:\n  def f(self, i): return 1\nf = C.f", {}, "method"),
    ],
)  # fmt: skip
def test_what_has_no_identity_is_refused_with_the_culprit_unless_there_is_a_version(
    cache: mmcache.Cache, source: str, names: dict[str, Any], culprit: str
) -> None:
    function = module_of(source, **names).f
    with pytest.raises(mmcache.NotIdentifiable, match=culprit) as refused:
        mmcache.cached(cache=cache)(function)
    assert "version=" in str(refused.value)
    assert mmcache.cached(cache=cache, version="1")(function).__wrapped__ is function
    if isinstance(names.get("connection"), sqlite3.Connection):
        names["connection"].close()


def test_a_global_that_loses_its_identity_later_is_a_bypass(cache: mmcache.Cache) -> None:
    module = module_of("S = 1\ndef f(i): return S")
    cached = mmcache.cached(cache=cache)(module.f)
    cached(np.zeros(3))
    module.S = lock = threading.Lock()  # type: ignore[attr-defined]
    assert cached(np.zeros(3)) is lock
    info = cached.cache_info()
    assert (info.bypassed, info.errors) == (1, 0)
    assert "'S'" in next(iter(info.bypass_reasons))


def test_a_version_stands_for_the_code_and_another_version_is_another_key(cache: mmcache.Cache) -> None:
    calls_of = []

    def embed(image: Any) -> int:
        calls_of.append(1)
        return 1

    for version, expected in (("1", 1), ("1", 1), ("2", 2), ("1", 2)):
        mmcache.cached(cache=cache, version=version)(embed)(np.zeros(3))
        assert len(calls_of) == expected


def test_functions_of_one_version_are_told_apart_by_name_and_bytecode(cache: mmcache.Cache) -> None:
    source = "def f(i): return 1\ndef g(i): return 2"
    functions = [module_of(source).f, module_of(source).g, module_of("def f(i): return i.ndim").f]
    for function in (*functions, *functions):
        assert mmcache.cached(cache=cache, version="1")(function)(np.zeros((2, 2, 2))) == function(np.zeros((2, 2, 2)))
    assert (cache.cache_info().misses, cache.cache_info().hits) == (3, 3)


def test_methods_work_with_a_version(cache: mmcache.Cache) -> None:
    class Reader:
        def __init__(self) -> None:
            self.calls = 0

        @mmcache.cached(cache=cache, version="1")
        def read(self, image: Any, scale: int = 1) -> int:
            self.calls += 1
            return int(image.sum()) * scale

    reader = Reader()
    assert [reader.read(np.ones(3)), reader.read(np.ones(3)), reader.read(np.ones(3), 2)] == [3, 3, 6]
    assert reader.calls == 2
    assert Reader().read(np.ones(3)) == 3, "the object is the version's business"


def test_two_functions_of_one_name_and_other_code_do_not_meet(cache: mmcache.Cache) -> None:
    one, other = module_of("def f(i): return 1").f, module_of("def f(i): return 2").f
    assert mmcache.cached(cache=cache)(one)(np.zeros(3)) == 1
    assert mmcache.cached(cache=cache)(other)(np.zeros(3)) == 2


def test_the_state_of_a_global_image_processor_is_part_of_the_key(cache: mmcache.Cache) -> None:
    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    module = module_of("def f(image): return PROCESSOR(image, return_tensors='pt')", PROCESSOR=processor)
    cached = mmcache.cached(cache=cache)(module.f)
    assert difference(module.f(photo()), cached(photo())) == ""
    assert cached(photo()) is not None
    assert cached.cache_info().hits == 1
    steps: list[Callable[[], None]] = [
        lambda: setattr(processor, "do_normalize", False),
        lambda: setattr(processor, "image_mean", (0.1, 0.2, 0.3)),
        lambda: setattr(processor.size, "shortest_edge", 20),
        lambda: setattr(module, "PROCESSOR", CLIPImageProcessorPil(crop_size={"height": 8, "width": 8})),
    ]
    for change in steps:
        change()
        assert difference(module.f(photo()), cached(photo())) == ""
    assert (cached.cache_info().hits, cached.cache_info().misses) == (1, 5)


@pytest.mark.parametrize("wrapper", [torch.no_grad(), torch.inference_mode()], ids=["no_grad", "inference_mode"])
def test_a_function_inside_a_decorator_of_torch_is_followed_or_refused(wrapper: Any) -> None:
    module = module_of("S = 1\n@wrapper\ndef g(i): return S\ndef f(i): return g(i)", wrapper=wrapper)
    with mmcache.Cache("16MiB") as cache:
        try:
            cached = mmcache.cached(cache=cache)(module.f)
        except mmcache.NotIdentifiable:
            return
        cached(np.zeros(3))
        module.S = 2  # type: ignore[attr-defined]
        assert cached(np.zeros(3)) == 2


def test_recursion_and_cached_functions_inside_cached_functions_run_plainly(cache: mmcache.Cache) -> None:
    module = module_of(
        "def f(image, depth): return 1 if depth == 0 else 1 + f(image, depth - 1)\n"
        "def inner(image): return S\n"
        "def outer(image): return inner(image) + 1\nS = 1"
    )
    vars(module)["f"] = f = mmcache.cached(cache=cache)(module.f)
    assert f(np.zeros(3), 3) == 4
    assert f(np.zeros(3), 3) == 4
    assert (f.cache_info().misses, f.cache_info().hits) == (1, 1), "only the outermost call is looked up"
    vars(module)["inner"] = mmcache.cached(cache=cache)(module.inner)
    outer = mmcache.cached(cache=cache)(module.outer)
    assert outer(np.zeros(3)) == 2
    module.S = 5  # type: ignore[attr-defined]
    assert outer(np.zeros(3)) == 6, "what an inner cached function names counts for the outer one"


def test_what_surrounds_the_code_is_part_of_the_key(cache: mmcache.Cache) -> None:
    def ones(image: Any) -> Any:
        return torch.tensor([1.0])

    cached = mmcache.cached(cache=cache)(ones)
    assert cached(np.zeros(3)).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert cached(np.zeros(3)).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# Sources


def read_text(path: Any) -> bytes:
    with open(path, "rb") as file:
        data = file.read()
    for change in changes:
        change(path)
    return data


changes: list[Callable[[Any], Any]] = []


@pytest.fixture
def reader(cache: mmcache.Cache) -> Iterator[mmcache.CachedCallable[[Any], bytes]]:
    yield mmcache.cached(cache=cache, version="1")(read_text)
    changes.clear()


def test_a_file_replaced_in_between_is_computed_again(reader: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"one")
    status = path.stat()
    assert reader(path) == reader(path) == b"one"
    assert reader.cache_info().misses == 1
    path.write_bytes(b"two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert reader(path) == b"two"
    (tmp_path / "copy.jpg").write_bytes(b"one")
    assert reader(tmp_path / "copy.jpg") == b"one"
    assert reader.cache_info().misses == 3, "a function may read the path too, so that counts beside the content"


def test_a_file_replaced_while_the_function_runs_is_not_stored(reader: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"one")
    changes.append(lambda p: Path(p).write_bytes(b"two"))
    assert reader(path) == b"one"
    changes.clear()
    path.write_bytes(b"one")
    assert reader.cache_info().items == 0
    assert reader(path) == b"one"
    assert reader.cache_info().misses == 1


def test_a_function_may_remove_the_file_that_it_read(reader: Any, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"one")
    changes.append(os.unlink)
    assert reader(path) == b"one"
    assert reader.cache_info().items == 0
    assert reader.cache_info().errors == 0


def test_a_missing_file_and_a_url_are_the_functions_own_business(reader: Any) -> None:
    for name in ("/nowhere/picture.png", "https://example.org/picture.png"):
        with pytest.raises(FileNotFoundError):
            reader(name)
    assert reader.cache_info().bypassed == 2


def test_the_exif_orientation_is_part_of_a_functions_key(cache: mmcache.Cache) -> None:
    def turned(image: Any) -> int:
        return int(image.getexif().get(0x0112, 1))

    cached = mmcache.cached(cache=cache)(turned)
    for orientation in (1, 6, 6, 8):
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo().save(file, "png", exif=exif)
        with Image.open(io.BytesIO(file.getvalue())) as image:
            assert cached(image) == orientation
    assert (cached.cache_info().misses, cached.cache_info().hits) == (3, 1)


def test_an_animated_gif_is_a_bypass(cache: mmcache.Cache) -> None:
    def frame(image: Any) -> int:
        calls.append(1)
        return int(image.tell())

    file = io.BytesIO()
    photo(0).save(file, "gif", save_all=True, append_images=[photo(1), photo(2)])
    cached = mmcache.cached(cache=cache, version="1")(frame)
    for _ in range(2):
        with Image.open(io.BytesIO(file.getvalue())) as image:
            image.seek(1)
            assert cached(image) == 1
            assert image.tell() == 1
    assert len(calls) == 2
    assert cached.cache_info().bypassed == 2
    assert "several frames" in next(iter(cached.cache_info().bypass_reasons))


# What is served and never kept


@pytest.mark.parametrize("draw", [
    random.random, lambda: np.random.rand(), lambda: torch.rand(1).item(), lambda: torch.nn.functional.dropout(torch.ones(64)).sum().item(),
], ids=["random", "numpy", "torch", "dropout"])  # fmt: skip
def test_an_output_made_with_random_numbers_is_not_stored(cache: mmcache.Cache, draw: Callable[[], float]) -> None:
    def augment(image: Any) -> float:
        calls.append(1)
        return draw()

    async def aaugment(image: Any) -> float:
        calls.append(1)
        return draw()

    cached = mmcache.cached(cache=cache, version="1")(augment)
    acached = mmcache.cached(cache=cache, version="1")(aaugment)
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    plain = [augment(0) for _ in range(4)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    served = [cached(photo()), cached(photo()), asyncio.run(acached(photo())), asyncio.run(acached(photo()))]
    assert served == plain
    assert len(calls) == 8
    info = cached.cache_info()
    assert (info.items, info.hits, info.bypassed, info.errors) == (0, 0, 4, 0)
    assert all("random" in reason for reason in info.bypass_reasons)


def served_and_not_stored(cache: mmcache.Cache, make: Callable[[], Any], reason: str) -> Any:
    def give(image: Any) -> Any:
        calls.append(1)
        return made[-1]

    made = [make()]
    cached = mmcache.cached(cache=cache, version="1")(give)
    assert cached(photo()) is made[-1]
    made.append(make())
    assert cached(photo()) is made[-1]
    assert len(calls) == 2
    info = cached.cache_info()
    assert (info.items, info.bypassed, info.errors) == (0, 2, 0)
    assert any(reason in text for text in info.bypass_reasons), info.bypass_reasons


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: {"a": torch.ones(2, requires_grad=True)}, "requires grad"),
        (lambda: [torch.ones(2, requires_grad=True) * 2], "requires grad"),
        (lambda: torch.ones(2, device="meta"), "meta"),
        (lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False), "Parameter"),
        (lambda: torch.ones(2, 2).to_sparse(), "dense"),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "dense"),
        (lambda: np.array([[1], [1, 2]], dtype=object), "Python objects"),
        (lambda: (None, {"deep": [np.ma.masked_array([1], [True])]}), "MaskedArray"),
        (lambda: object(), "object"),
        (lambda: {1, 2}, "set"),
        (lambda: bytearray(b"x"), "bytearray"),
        (lambda: torch.ones(2).max(0), "torch.return_types"),
        (lambda: type("Text", (str,), {})("x"), "Text"),
    ],
)
def test_what_could_not_be_given_again_exactly_is_served_itself(
    cache: mmcache.Cache, make: Callable[[], Any], reason: str
) -> None:
    served_and_not_stored(cache, make, reason)


def test_an_output_that_contains_itself_is_served_itself(cache: mmcache.Cache) -> None:
    def make() -> list[Any]:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    served_and_not_stored(cache, make, "itself")


@pytest.mark.parametrize("extra", [object(), threading.Lock(), lambda: 3, {"a": [photo()]}, type("S", (str,), {})("x")])
def test_an_argument_that_cannot_be_encoded_is_a_bypass_with_its_reason(cache: mmcache.Cache, extra: Any) -> None:
    def give(image: Any, extra: Any, *more: Any, **options: Any) -> int:
        calls.append(1)
        return 1

    cached = mmcache.cached(cache=cache, version="1")(give)
    for _ in range(2):
        assert cached(photo(), extra) == cached(photo(), 1, extra) == cached(photo(), 1, option=extra) == 1
    assert len(calls) == 6
    info = cached.cache_info()
    assert (info.bypassed, info.hits, info.misses, info.errors) == (6, 0, 0, 0)
    assert all(type(extra).__name__ in reason or "PIL" in reason for reason in info.bypass_reasons), info.bypass_reasons


def test_exceptions_pass_unchanged_and_are_not_stored(cache: mmcache.Cache) -> None:
    errors = [ValueError("a"), KeyError("b")]

    def fail(image: Any) -> int:
        calls.append(1)
        if errors:
            raise errors.pop(0)
        return 1

    cached = mmcache.cached(cache=cache, version="1")(fail)
    expected = list(errors)
    for error in expected:
        with pytest.raises(type(error)) as raised:
            cached(photo())
        assert raised.value is error
        assert error.__cause__ is None
        assert error.__context__ is None
    assert cached(photo()) == cached(photo()) == 1
    assert len(calls) == 3
    assert cached.cache_info().errors == 0


def test_arguments_that_do_not_fit_raise_the_functions_own_error(cache: mmcache.Cache) -> None:
    def give(image: Any, *, size: int) -> int:
        return size

    cached: Any = mmcache.cached(cache=cache)(give)
    for args, options in (((), {}), ((photo(),), {}), ((photo(),), {"sise": 3})):
        with pytest.raises(TypeError, match=r"give\(\)"):
            cached(*args, **options)


def test_a_base_exception_passes_and_the_next_call_computes(cache: mmcache.Cache) -> None:
    stops: list[BaseException] = [KeyboardInterrupt()]

    def stop(image: Any) -> int:
        if stops:
            raise stops.pop()
        return 1

    cached = mmcache.cached(cache=cache, version="1")(stop)
    with pytest.raises(KeyboardInterrupt):
        cached(photo())
    assert cached(photo()) == 1


def test_an_output_made_under_inference_mode_can_be_used_with_autograd_later(cache: mmcache.Cache) -> None:
    def pixels(image: Any) -> torch.Tensor:
        calls.append(1)
        return torch.ones(3)

    cached = mmcache.cached(cache=cache, version="1")(pixels)
    with torch.inference_mode():
        cached(photo())
    with torch.no_grad():  # with grad enabled it is another call: the function may use weights
        hit = cached(photo())
    assert len(calls) == 1
    weight = torch.ones(3, requires_grad=True)
    (hit * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(weight.grad, torch.ones(3))  # type: ignore[arg-type]
    hit.requires_grad_()


def test_an_item_larger_than_the_cache_is_served_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    with mmcache.Cache(100_000) as small:

        def large(image: Any) -> Any:
            return np.zeros(200_000, np.uint8)

        cached = mmcache.cached(cache=small)(large)
        for seed in range(3):
            assert cached(photo(seed)).size == 200_000
        assert small.cache_info().items == 0
    assert [r.levelname for r in caplog.records if "max_bytes" in r.getMessage()] == ["WARNING"]


# Tasks and threads


def test_twenty_tasks_make_one_computation(cache: mmcache.Cache) -> None:
    async def process(image: Any) -> Any:
        calls.append(1)
        started.set()
        await go.wait()
        return torch.ones(3)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(cached(photo())) for _ in range(20)]
        await started.wait()
        go.set()
        return await asyncio.gather(*tasks)

    started, go = asyncio.Event(), asyncio.Event()  # bound to the loop that first waits for them
    cached = mmcache.cached(cache=cache, version="1")(process)
    assert asyncio.iscoroutinefunction(cached) if sys.version_info < (3, 14) else True
    outputs = asyncio.run(main())
    assert len(calls) == 1
    outputs[0].zero_()
    assert all(torch.equal(output, torch.ones(3)) for output in outputs[1:])
    info = cached.cache_info()
    assert (info.misses, info.coalesced, info.bypassed) == (1, 19, 0)


def test_a_cancelled_task_cancels_only_itself(cache: mmcache.Cache) -> None:
    async def process(image: Any) -> int:
        calls.append(1)
        started.set()
        await go.wait()
        return 1

    async def main() -> int:
        leader = asyncio.create_task(cached(photo()))
        await started.wait()
        waiters = [asyncio.create_task(cached(photo())) for _ in range(3)]
        leader.cancel()
        waiters[0].cancel()
        go.set()
        results = await asyncio.gather(leader, *waiters, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, True, False, False]
        return len(calls)

    started, go = asyncio.Event(), asyncio.Event()  # bound to the loop that first waits for them
    cached = mmcache.cached(cache=cache, version="1")(process)
    assert asyncio.run(main()) == 2


def test_an_async_exception_reaches_every_waiter_and_is_not_stored(cache: mmcache.Cache) -> None:
    async def process(image: Any) -> int:
        calls.append(1)
        await asyncio.sleep(0)
        raise OSError("broken")

    cached = mmcache.cached(cache=cache, version="1")(process)

    async def main() -> list[Any]:
        return await asyncio.gather(*[cached(photo()) for _ in range(5)], return_exceptions=True)

    assert [str(error) for error in asyncio.run(main())] == ["broken"] * 5
    assert len(calls) == 1
    assert [str(error) for error in asyncio.run(main())] == ["broken"] * 5
    assert len(calls) == 2


def test_sixteen_threads_make_one_computation(cache: mmcache.Cache) -> None:
    gate, entered = threading.Event(), threading.Event()

    def process(image: Any) -> Any:
        calls.append(1)
        entered.set()
        assert gate.wait(30)
        return np.ones(3)

    cached = mmcache.cached(cache=cache, version="1")(process)
    outputs: list[Any] = []
    threads = [threading.Thread(target=lambda: outputs.append(cached(photo()))) for _ in range(16)]
    for thread in threads:
        thread.start()
    assert entered.wait(30)
    gate.set()
    for thread in threads:
        thread.join(30)
    assert len(calls) == 1
    assert len({id(output) for output in outputs}) == 16
    assert all(output.sum() == 3 for output in outputs)
    info = cached.cache_info()
    assert (info.misses, info.hits + info.coalesced) == (1, 15)


# Batch functions


def batch(images: Sequence[Any], scale: int = 1) -> dict[str, Any]:
    calls.append(len(images))
    rows = [torch.full((1, image.height, 2), float(scale)) for image in images]
    height = max(row.shape[1] for row in rows)
    padded = [torch.nn.functional.pad(row, (0, 0, 0, height - row.shape[1])) for row in rows]
    return {"sizes": torch.tensor([[i.height, i.width] for i in images]), "pixels": torch.cat(padded), "scale": scale}


LAYOUT: dict[str, Field] = {"sizes": Batched(), "pixels": Padded(), "scale": Same()}


def test_a_batch_function_computes_only_what_is_missing() -> None:
    cache = mmcache.Cache("64MiB", verify_rate=0)
    cached = mmcache.cached(cache=cache, layout=LAYOUT, version="1")(batch)
    pictures = [photo(0, 8), photo(1, 5), photo(2, 3)]
    plain = batch(pictures)
    calls.clear()
    assert difference(plain, cached(pictures)) == ""
    assert calls == [1, 1, 1]
    assert (
        difference(batch([pictures[2], photo(3, 9), pictures[0]]), cached((pictures[2], photo(3, 9), pictures[0])))
        == ""
    )
    assert calls == [1, 1, 1, 3, 1]
    assert difference(batch([pictures[1]] * 2), cached([pictures[1]] * 2)) == ""
    info = cached.cache_info()
    assert (info.misses, info.hits, info.bypassed) == (4, 4, 0)


def test_a_batch_function_that_is_not_given_a_list_or_makes_no_batch_runs_plainly(cache: mmcache.Cache) -> None:
    cached: Any = mmcache.cached(cache=cache, layout={**LAYOUT, "pixels": Batched()}, version="1")(batch)
    assert difference(batch([photo(0, 8), photo(1, 5)]), cached([photo(0, 8), photo(1, 5)])) == ""
    with pytest.raises(ValueError, match=r"max\(\)"):
        cached([])
    with pytest.raises(TypeError):
        cached(photo())
    assert cached.cache_info().errors == 0
    assert cached.cache_info().bypassed == 2 + 1 + 1


def test_an_error_in_a_batch_is_the_plain_one(cache: mmcache.Cache) -> None:
    def fail(images: list[Any]) -> dict[str, Any]:
        calls.append(len(images))
        raise ValueError(f"{len(images)} images")

    cached = mmcache.cached(cache=cache, layout={"x": Batched()}, version="1")(fail)
    with pytest.raises(ValueError, match="3 images"):
        cached([photo(0), photo(1), photo(2)])
    assert calls == [1, 3]


def test_the_order_of_options_counts_for_a_function_that_goes_through_them(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1")
    def options_of(image: Any, **options: Any) -> dict[str, Any]:
        return dict(options)

    assert list(options_of(photo(), a=1, b={"x": 1, "y": 2})) == ["a", "b"]
    assert list(options_of(photo(), b={"y": 2, "x": 1}, a=1)) == ["b", "a"]
    assert list(options_of(photo(), b={"y": 2, "x": 1}, a=1)["b"]) == ["y", "x"]


def test_a_record_that_the_caller_can_write_to_is_not_shared(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1")
    def record(image: Any) -> Any:
        return np.array([(1, 2.0)], dtype=[("a", int), ("b", float)])[0]

    record(photo())["a"] = 99
    assert record(photo())["a"] == 1


def test_autocast_and_grad_mode_part_the_outputs(cache: mmcache.Cache) -> None:
    weight = torch.ones(3, 3)

    @mmcache.cached(cache=cache, version="1")
    def product(image: Any) -> Any:
        return torch.ones(3, 3) @ weight

    assert product(photo()).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert product(photo()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.float16):
        assert product(photo()).dtype == torch.float16
    weight.requires_grad_()
    with torch.no_grad():
        assert not product(photo()).requires_grad
    cache.clear()
    with torch.no_grad():
        product(photo())
    assert product(photo()).requires_grad


@pytest.mark.parametrize("layout", [{"a": "batched"}, {"a": 3}, 3, {}, {"a": mmcache.layout.Batched}])
def test_a_layout_that_is_none_is_refused_when_decorated(layout: Any) -> None:
    with pytest.raises(mmcache.BadArgument, match=r"a field of mmcache\.layout"):
        mmcache.cached(layout=layout, version="1")(lambda images: images)


def test_a_version_is_a_text() -> None:
    with pytest.raises(mmcache.BadArgument, match="a text"):
        mmcache.cached(version=1)(lambda image: image)  # type: ignore[call-overload]


def test_the_strides_of_an_argument_are_part_of_it(cache: mmcache.Cache) -> None:
    @mmcache.cached(cache=cache, version="1")
    def rows(image: Any, weight: Any) -> Any:
        return weight.is_contiguous() if isinstance(weight, torch.Tensor) else weight.flags.c_contiguous

    square = torch.arange(9.0).reshape(3, 3)
    turned = square.T.contiguous().T
    for first, second in ((square, turned), (square.numpy(), turned.numpy())):
        assert rows(photo(), first)
        assert not rows(photo(), second)
        assert not rows(photo(), weight=second)
    assert cache.cache_info().hits == 2


def test_an_image_processor_as_an_argument_counts_by_its_state(cache: mmcache.Cache) -> None:
    usual = CLIPImageProcessorPil(size={"shortest_edge": 28}, do_center_crop=False)

    def process(image: Any, processor: Any = usual) -> Any:
        calls.append(1)
        return processor(image, return_tensors="np")["pixel_values"]

    cached = mmcache.cached(cache=cache, version="1")(process)
    for _ in range(2):
        assert cached(photo()).shape[2:] == (28, 42)
    other = CLIPImageProcessorPil(size={"shortest_edge": 30}, do_center_crop=False)
    assert cached(photo(), other).shape[2:] == (30, 45)
    other.size = {"shortest_edge": 32}
    assert cached(photo(), processor=other).shape[2:] == (32, 48)
    assert len(calls) == 3
    assert cache.cache_info().bypassed == 0, cache.cache_info().bypass_reasons
