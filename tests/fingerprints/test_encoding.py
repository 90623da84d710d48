import enum
import itertools
import math
import os
import struct
import subprocess
import sys
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcache.errors import NotEncodable
from mmcache.fingerprints import encode


class Colour(enum.Enum):
    RED = 1


class Shade(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    ONE = 1
    UNO = 1


class Word(enum.StrEnum):
    ONE = "1"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Text(str):
    pass


class Number(int):
    pass


Point = namedtuple("Point", "x y")

# Values that equal each other in Python, or whose careless encodings would meet.
DISTINCT: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    255,
    256,
    -256,
    2**64,
    -(2**64),
    10**5000,
    1.0,
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    1j,
    complex(0.0, -0.0),
    complex(1, 0),
    "",
    "1",
    "None",
    "True",
    "\x00",
    "é",
    "e\u0301",
    "\udcff",
    b"",
    b"1",
    bytearray(b"1"),
    [],
    (),
    set(),
    frozenset(),
    {},
    OrderedDict(),
    UserDict(),
    MappingProxyType({}),
    [()],
    ([],),
    [[]],
    [[], []],
    [1],
    [1, 1],
    (1,),
    [[1], 2],
    [1, [2]],
    [1, 2],
    ["ab", "c"],
    ["a", "bc"],
    ["abc"],
    [b"ab", b"c"],
    {1},
    frozenset([1]),
    {"a": 1},
    {"a": 1.0},
    {"a": True},
    {1: "a"},
    {True: "a"},
    {"1": "a"},
    {None: "a"},
    {(1, 2): "a"},
    [("a", 1)],
    {"a": {"b": 1}},
    {"a": None, "b": 1},
    Colour.RED,
    Shade.RED,
    Level.ONE,
    Word.ONE,
    Access.READ,
    Access.READ | Access.WRITE,
    Access(0),
    numpy.float32(1),
    numpy.float64(1),
    numpy.float64(-0.0),
    numpy.float64(0.0),
    numpy.int64(1),
    numpy.int32(1),
    numpy.uint8(1),
    numpy.bool_(True),
    numpy.str_("1"),
    numpy.bytes_(b"1"),
    numpy.datetime64("2020-01-01"),
    numpy.datetime64("2020-01-01", "s"),
    numpy.dtype("<u2"),
    numpy.dtype(">u2"),
    numpy.uint16,
    torch.uint8,
    torch.float16,
    torch.bfloat16,
    torch.device("cpu"),
    torch.device("cuda", 0),
    torch.device("cuda"),
    torch.Size([1]),
    torch.Size([]),
    numpy.ones(1, numpy.uint8),
    numpy.ones((1, 1), numpy.uint8),
    numpy.ones((), numpy.uint8),
    numpy.ones(1, numpy.int8),
    numpy.ones(1, numpy.bool_),
    numpy.ones(1, "<u2"),
    numpy.ones(1, ">u2"),
    numpy.zeros((0, 3), numpy.uint8),
    numpy.zeros((3, 0), numpy.uint8),
    torch.ones(1, dtype=torch.uint8),
    torch.ones(1, 1, dtype=torch.uint8),
    torch.ones((), dtype=torch.uint8),
    torch.ones(1, dtype=torch.bool),
    torch.ones(1, dtype=torch.bfloat16),
    torch.ones(1, dtype=torch.bfloat16).view(torch.float16),
    torch.ones(1, dtype=torch.float32),
    torch.ones(1, dtype=torch.float32, requires_grad=True),
]


def test_values_that_look_alike_all_encode_differently() -> None:
    encodings = [encode(value) for value in DISTINCT]
    clashes = [
        (DISTINCT[i], DISTINCT[j])
        for i, j in itertools.combinations(range(len(DISTINCT)), 2)
        if encodings[i] == encodings[j]
    ]
    assert clashes == []


def test_no_encoding_is_the_beginning_of_another() -> None:
    encodings = sorted(encode(value) for value in DISTINCT)
    assert not any(later.startswith(earlier) for earlier, later in itertools.pairwise(encodings))


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.integers()
    | st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf])
    | st.floats()
    | st.complex_numbers()
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.sampled_from([Colour.RED, Shade.RED, Level.ONE, Word.ONE])
)
hashables = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2) | st.binary(max_size=2)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(hashables, inner, max_size=3)
        | st.sets(hashables, max_size=3)
        | st.frozensets(hashables, max_size=3)
    ),
    max_leaves=8,
)


def model(value: Any) -> object:
    """What a value is, written independently of its encoding: nested tuples that are equal for equal values only."""
    kind = type(value).__module__, type(value).__qualname__
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, float):
        return kind, struct.pack(">d", value)
    if isinstance(value, complex):
        return kind, struct.pack(">dd", value.real, value.imag)
    if isinstance(value, (list, tuple)):
        return kind, tuple(model(member) for member in value)
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(model(member) for member in value)
    if isinstance(value, dict):
        return kind, frozenset((model(key), model(member)) for key, member in value.items())
    return kind, value


@settings(deadline=None, max_examples=400)
@given(values, values)
def test_encodings_are_equal_exactly_when_values_are(one: object, other: object) -> None:
    assert (encode(one) == encode(other)) == (model(one) == model(other))


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(hashables, scalars, max_size=6), st.randoms(use_true_random=False))
def test_mappings_and_sets_have_no_order(mapping: dict[Any, Any], random: Any) -> None:
    items = list(mapping.items())
    random.shuffle(items)
    assert encode(dict(items)) == encode(mapping)
    assert encode({key for key, _ in items}) == encode(set(mapping))
    assert encode(frozenset(key for key, _ in items)) == encode(frozenset(mapping))


@settings(deadline=None, max_examples=200)
@given(values, values, values)
def test_neighbours_cannot_lend_each_other_bytes(one: object, two: object, three: object) -> None:
    assert encode([one, [two, three]]) != encode([[one, two], three])
    assert encode((one, two)) != encode((one, two, three))


def test_a_large_dictionary_of_numbers_as_keys_encodes_in_any_order() -> None:
    labels = {index: f"label {index}" for index in range(1000)}
    assert encode(labels) == encode(dict(reversed(labels.items())))
    assert encode(labels) != encode({str(key): label for key, label in labels.items()})


def test_hash_seed_and_process_do_not_show() -> None:
    code = (
        "from mmcache.fingerprints import encode; print(encode([{'a','b','c',1,None}, {'x': 1, 'y': 2, 3: 4}]).hex())"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("0", "1", "77")
    }
    assert answers == {encode([{"a", "b", "c", 1, None}, {"x": 1, "y": 2, 3: 4}]).hex()}


def test_it_needs_neither_numpy_nor_torch() -> None:
    code = """
import sys
from mmcache.fingerprints import encode
encode({"size": {"height": 1}, "mean": (0.5, 0.5)})
print(sorted({"numpy", "torch", "PIL", "transformers", "xxhash"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_enum_aliases_are_one_and_flags_without_a_name_count_by_value() -> None:
    assert encode(Level.ONE) == encode(Level.UNO)
    assert encode(Access.READ | Access.WRITE) != encode(Access.READ)


def test_strides_and_layouts_of_arrays_do_not_show() -> None:
    array = numpy.arange(24, dtype=numpy.int16).reshape(2, 3, 4)
    assert encode(numpy.asfortranarray(array)) == encode(array)
    assert encode(array[:, ::-1][:, ::-1]) == encode(array)
    tensor = torch.from_numpy(array)
    assert encode(tensor.permute(2, 0, 1).contiguous().permute(1, 2, 0)) == encode(tensor)
    complex_tensor = torch.tensor([1 + 2j])
    assert encode(complex_tensor.conj()) == encode(torch.tensor([1 - 2j]))
    assert encode(complex_tensor.conj().imag) == encode(torch.tensor([-2.0]))


class Anything:
    pass


SELF_CONTAINING: list[Any] = []
SELF_CONTAINING.append(SELF_CONTAINING)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (Anything(), "value"),
        ({"size": [1, 2, Anything()]}, "value['size'][2]"),
        ([{"a": {"b": (None, Text("x"))}}], "value[0]['a']['b'][1]"),
        ({"n": Number(1)}, "value['n']"),
        ({Text("key"): 1}, "value (key <Text>)"),
        ({3: Point(1, 2)}, "value[3]"),
        ([{1, Number(7)}], "value[0] (a member of the set)"),
        ([defaultdict(list)], "value[0]"),
        ([numpy.array([None])], "value[0]"),
        ([numpy.zeros(1, "u1,u2")], "value[0]"),
        ([numpy.longdouble(1)], "value[0]"),
        ([numpy.ma.masked_array([1], [True])], "value[0]"),
        ([print], "value[0]"),
        ([torch.nn.Parameter(torch.zeros(1))], "value[0]"),
        ([torch.zeros(1, device="meta")], "value[0]"),
        ([torch.eye(2).to_sparse()], "value[0]"),
        (SELF_CONTAINING, "value[0]"),
        ({"again": SELF_CONTAINING}, "value['again'][0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_encoded_is_refused_with_the_path_to_it(value: object, where: str) -> None:
    with pytest.raises(NotEncodable) as refusal:
        encode(value)
    assert refusal.value.where == where


def test_a_mapping_that_contains_itself_is_refused() -> None:
    mapping: dict[str, object] = {}
    mapping["me"] = mapping
    with pytest.raises(NotEncodable, match=r"value\['me'\]"):
        encode(mapping)


def test_very_deep_nesting_is_refused_and_not_a_recursion_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(NotEncodable, match="nested too deeply"):
        encode(deep)
    while deep:  # taken apart by hand, since freeing it all at once would recurse as deeply
        deep = deep.pop()  # type: ignore[assignment]


def test_one_object_in_two_places_is_no_recursion() -> None:
    shared = [1, 2]
    assert encode([shared, shared]) == encode([[1, 2], [1, 2]])


def test_two_keys_that_are_not_a_number_are_refused() -> None:
    with pytest.raises(NotEncodable):
        encode({float("nan"): 1, float("nan"): 2})


def test_a_refusal_does_not_show_the_value() -> None:
    with pytest.raises(NotEncodable) as refusal:
        encode({"token": Text("secret")})
    assert "secret" not in str(refusal.value)
    assert refusal.value.type_name.endswith("test_encoding.Text")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, False),
        (None, 0),
        (1, 2),
        (100, 101),
        (0.5, 0.25),
        (2j, 1j),
        (numpy.float32(1), numpy.float32(2)),
        (numpy.zeros((2, 3)), numpy.ones((2, 3))),
        (torch.zeros(2, 3), torch.ones(2, 3)),
        (1, 1.0),
        (1, True),
        ("1", "2"),
        (Level.ONE, 1),
        (Colour.RED, Shade.RED),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({0: "x", 1: "y"}, {0: "x", 2: "y"}),
        (numpy.float32(1), numpy.float64(1)),
        (numpy.zeros(3), numpy.zeros((3, 3))),
        (numpy.zeros(3, numpy.uint8), numpy.zeros(3, numpy.int8)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.float16)),
        (torch.zeros(1), numpy.zeros(1, numpy.float32)),
        (numpy.bool_(True), numpy.bool_(False)),
    ],
)
def test_different_values_differ(one: object, other: object) -> None:
    assert encode(one) != encode(other)


def test_a_great_many_texts_do_not_fill_memory() -> None:
    from mmcache.fingerprints import encoding

    for index in range(2 * encoding._KNOWN_TEXTS_LIMIT):
        encode(f"never seen before {index}")
    assert len(encoding._KNOWN_TEXTS) <= encoding._KNOWN_TEXTS_LIMIT
    assert encode("never seen before 1") != encode("never seen before 2")
