"""The identity of code itself: stable where nothing changed, another one where anything did."""

import functools
import sys
import threading
import types
from typing import Any

import pytest
import torch
import transformers

from mmcache.errors import NotIdentifiable
from mmcache.fingerprints import encode
from mmcache.fingerprints.code import CodeIdentity, is_method, package_version


def function(source: str, name: str = "f", **names: Any) -> Any:
    module = types.ModuleType("script")
    vars(module).update(names)
    exec(compile(source, "script.py", "exec"), vars(module))
    return vars(module)[name]


def code(source: str, **names: Any) -> bytes:
    return encode(CodeIdentity(function(source, **names)).current())


def test_equal_code_is_equal_wherever_it_stands() -> None:
    assert code("def f(i): return i + 1") == code("\n\n\n# moved\ndef f(i):\n    return i + 1")


@pytest.mark.parametrize(
    "sources",
    [
        ["return 1", "return 1.0", "return True", "return '1'", "return b'1'", "return None", "return 1j", "return (1,)"],
        ["return 0.0", "return -0.0"],
        ["return (0.0, 1)", "return (-0.0, 1)", "return (0.0, True)"],
        ["return ...", "return ('ellipsis',)", "return (...,)", "return '...'", "return (('ellipsis',),)"],
        ["return i[..., 0]", "return i[0, ...]", "return i[:, 0]", "return i[1:2]", "return i[1:3]"],
        ["return i + 1", "return i - 1"],
        ["return i.shape", "return i.size"],
        ["return i in {1, 2}", "return i in {1, 3}", "return i in (1, 2)"],
        ["return (lambda: 1)()", "return (lambda: 2)()"],
        ["return [x for x in i]", "return [x + 1 for x in i]"],
        ["return g(i)", "return h(i)"],
        ["\n  try: return 1\n  except ValueError: return 2", "\n  try: return 1\n  except KeyError: return 2"],
        ["import math; return math", "import cmath; return cmath", "from math import pi; return pi"],
    ],
)  # fmt: skip
def test_other_code_is_another_identity(sources: list[str]) -> None:
    assert len({code(f"def f(i): {source}") for source in sources}) == len(sources)


@pytest.mark.parametrize(
    ("held", "change"),
    [
        (torch.zeros(2), lambda held: held.fill_(1)),
        ({"a": [1]}, lambda held: held["a"].append(2)),
        ([{1: 1}], lambda held: held[0].update({1: True})),
    ],
    ids=["tensor", "dict", "list"],
)
def test_what_changes_in_place_is_seen(held: Any, change: Any) -> None:
    identity = CodeIdentity(function("def f(i): return H", H=held))
    before = encode(identity.current())
    assert encode(identity.current()) == before
    change(held)
    assert encode(identity.current()) != before


def test_the_same_function_twice_and_two_equal_functions_are_told_apart() -> None:
    one = "def g(): return 1\ndef h(): return 1\ndef f(i): return g() + g()"
    two = "def g(): return 1\ndef h(): return 2\ndef f(i): return g() + h()"
    assert code(one) != code(two)


def test_a_description_stays_until_something_changes_and_comes_back_with_it() -> None:
    f = function("S = 1\nL = [1]\ndef g(): return S\ndef f(i): return g(), L[0]")
    identity = CodeIdentity(f)
    first = encode(identity.current())
    seen = identity._seen
    assert encode(identity.current()) == first
    assert identity._seen is seen, "described anew though nothing changed"
    f.__globals__["S"] = 2
    assert encode(identity.current()) != first
    f.__globals__["S"] = 1
    assert encode(identity.current()) == first
    f.__globals__["L"].append(2)
    assert encode(identity.current()) != first
    f.__globals__["L"].pop()
    assert encode(identity.current()) == first


def test_an_object_at_the_address_of_a_dead_one_is_not_taken_for_it() -> None:
    f = function("S = (1.5, 'x')\ndef f(i): return S")
    identity = CodeIdentity(f)
    seen = {encode(identity.current())}
    for number in range(200):
        f.__globals__["S"] = (float(number), "y")
        seen.add(encode(identity.current()))
    assert len(seen) == 201


def test_cycles_of_functions_end() -> None:
    f = function("def f(i): return g(i)\ndef g(i): return f(i)")
    assert encode(CodeIdentity(f).current())
    f.__wrapped__ = f
    assert encode(CodeIdentity(function("def k(i): return g(i)", "k", g=f)).current())


def test_threads_that_describe_at_once_agree() -> None:
    f = function("S = 1\ndef g(): return S\ndef f(i): return g()")
    identity = CodeIdentity(f)
    barrier = threading.Barrier(8)
    seen: list[bytes] = []

    def look() -> None:
        barrier.wait(30)
        seen.extend(encode(identity.current()) for _ in range(50))

    f.__globals__["S"] = 2
    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 400
    assert len(set(seen)) == 1


def test_a_library_decorator_around_foreign_code_hides_nothing() -> None:
    source = "import functools, contextlib\nS = 1\n@deco\ndef g(i): return S\ndef f(i): return g(i)"
    for deco in (functools.lru_cache, functools.cache, functools.wraps(torch.cat), functools.partial):
        f = function(source, deco=deco)
        identity = CodeIdentity(f)
        before = encode(identity.current())
        f.__globals__["S"] = 2
        assert encode(identity.current()) != before, deco


def test_code_of_a_library_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    f = function("def f(i): return torch.cat and transformers.utils", torch=torch, transformers=transformers)
    before = encode(CodeIdentity(f).current())
    # Not the name above: transformers replaces its module when an attribute is first asked for.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "0.0.1")
    assert encode(CodeIdentity(f).current()) != before


@pytest.mark.parametrize(
    "used", [transformers.BatchFeature, transformers.utils.generic.to_numpy], ids=["class", "function"]
)
def test_a_class_or_function_of_a_library_counts_by_its_version(used: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f = function("def f(i): return used", used=used)
    before = encode(CodeIdentity(f).current())
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "0.0.1")
    assert encode(CodeIdentity(f).current()) != before


def test_versions_of_packages() -> None:
    assert package_version("torch.nn") == str(torch.__version__)
    assert package_version("transformers") == transformers.__version__
    assert package_version("json.decoder") == f"python {sys.version.split()[0]}"
    assert package_version("__main__") is None
    assert package_version("") is None
    assert package_version("no_such_module_anywhere") is None
    assert package_version("_pytest") is not None, "another name than its distribution's"


def test_a_relative_import_counts_as_the_module_that_it_is_in() -> None:
    f = function("def f(i):\n  from . import sibling\n  return sibling")
    f.__module__ = "torch.nn"
    f.__globals__["__name__"] = "torch.nn"
    assert encode(CodeIdentity(f).current())
    f.__module__ = f.__globals__["__name__"] = "own_package.things"
    with pytest.raises(NotIdentifiable, match="own_package"):
        CodeIdentity(f)


def test_methods_are_known_by_name_and_first_argument() -> None:
    class Own:
        def method(self) -> None: ...
        @classmethod
        def of_class(cls) -> None: ...
        @staticmethod
        def static(image: Any) -> None: ...
        def maker(self) -> Any:
            def inner(image: Any) -> None: ...

            return inner

    assert is_method(Own.method)
    assert is_method(Own().method)
    assert is_method(Own.of_class)
    assert not is_method(Own.static)
    assert not is_method(Own().maker())
    assert not is_method(lambda self: self)
