"""Finding fields: what explains all batches is found, and nothing is made up for what none explains."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mmcache.layout import Along, Batched, Largest, Nested, Padded, PaddedLists, RunningOffset, Same, Sometimes
from mmcache.layout.candidates import Unexplained, find_fields

Rows = list[dict[str, Any]]


def single(number: int) -> dict[str, Any]:
    """What an image gives: ``number`` rows, indices into them, counts."""
    return {
        "rows": torch.full((number, 2), float(number)),
        "at": torch.tensor([[0, -1], [number - 1, 0]]),
        "count": torch.tensor([number]),
        "list": [[bool(number % 2)] * number],
    }


BATCHES = ((1, 2), (2, 1), (3, 3), (2, 3, 1), (1, 4))


def tried(make: Callable[[Rows], dict[str, Any]], one: Callable[[int], dict[str, Any]] = single) -> list[Any]:
    batches = [[one(number) for number in batch] for batch in BATCHES]
    return [(outputs, make(outputs)) for outputs in batches]


def found(make: Callable[[Rows], Any]) -> Any:
    """Return the field of an output that ``make`` gives for a batch, beside its rows."""

    def output(numbers: Sequence[int]) -> dict[str, Any]:
        images = [single(number) for number in numbers]
        return {"rows": torch.cat([image["rows"] for image in images]), "made": make(images)}

    batches = [([output([number]) for number in batch], output(batch)) for batch in BATCHES]
    return find_fields(batches, flat=True)["made"]


def column(outputs: Rows, name: str) -> list[Any]:
    return [output[name] for output in outputs]


def moved(parts: Sequence[torch.Tensor], by: Sequence[int]) -> torch.Tensor:
    offsets = np.cumsum([0, *by[:-1]])
    return torch.cat([part.where(part < 0, part + int(n)) for part, n in zip(parts, offsets, strict=True)])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda o: 1, Same()),
        (lambda o: torch.cat(column(o, "rows")), Batched()),
        (lambda o: torch.cat(column(o, "rows")).T[None], Along(-1)),
        (lambda o: torch.cat(column(o, "rows")).T[None, ..., None], Along(-2)),
        (lambda o: torch.cat(column(o, "rows"))[None], Nested(0)),
        (lambda o: max(column(o, "count")), Largest()),
        (lambda o: int(max(column(o, "count"))), Largest()),
    ],
)
def test_outputs_of_single_images_tell_how_they_join(make: Any, field: Any) -> None:
    assert found(make) == field


def padded_lists(parts: Rows, value: Any) -> list[list[Any]]:
    entries = [entry for part in parts for entry in part["list"]]
    longest = max(map(len, entries))
    return [entry + [value] * (longest - len(entry)) for entry in entries]


@pytest.mark.parametrize("value", [False, 0, True, -1, 2.5])
def test_the_value_that_pads_lists_is_found_with_its_type(value: Any) -> None:
    field = find_fields(
        [
            ([{"list": o["list"]} for o in outputs], {"list": padded_lists(outputs, value)})
            for outputs in ([single(n) for n in batch] for batch in BATCHES)
        ],
        flat=True,
    )["list"]
    assert isinstance(field, PaddedLists)
    assert (type(field.value), field.value) == (type(value), value)


@pytest.mark.parametrize("dims", [0, 1])
def test_running_offsets_are_found_with_the_sizes_that_they_move_by(dims: int) -> None:
    def batch(outputs: Rows) -> dict[str, Any]:
        sizes = [1 if dims == 0 else len(output["rows"]) for output in outputs]
        rows = torch.cat(column(outputs, "rows"))
        return {"rows": rows, "at": moved(column(outputs, "at"), sizes)}

    def parts(number: int) -> dict[str, Any]:
        return {name: single(number)[name] for name in ("rows", "at")}

    assert find_fields(tried(batch, parts), flat=True) == {"rows": Batched(), "at": RunningOffset("rows", dims)}


def test_offsets_by_something_that_nothing_shows_are_not_explained() -> None:
    with pytest.raises(Unexplained, match="'made'"):
        found(lambda outputs: moved(column(outputs, "at"), [7 * len(output["rows"]) for output in outputs]))


def test_rows_of_padding_are_found_only_where_constants_do_not_do() -> None:
    def parts(number: int) -> dict[str, Any]:
        return {"mask": torch.tensor([[[1, 1, 0]] * number])}

    def batch(row: list[int]) -> Callable[[Rows], dict[str, Any]]:
        def make(outputs: Rows) -> dict[str, Any]:
            tables = [output["mask"][0].tolist() for output in outputs]
            longest = max(map(len, tables))
            return {"mask": torch.tensor([table + [row] * (longest - len(table)) for table in tables])}

        return make

    for row, value in (([1, 0, 0], (1, 0, 0)), ([5, 5, 5], 5), ([0, 0, 0], 0)):
        assert find_fields(tried(batch(row), parts), flat=False) == {"mask": Padded(value)}


def sometimes(number: int) -> dict[str, Any]:
    return {"count": single(number)["count"], **({"rows": single(number)["rows"]} if number > 1 else {})}


def joined_where_there(outputs: Rows) -> dict[str, Any]:
    rows = [output["rows"] for output in outputs if "rows" in output]
    return {"count": torch.cat(column(outputs, "count")), **({"rows": torch.cat(rows)} if rows else {})}


def test_outputs_that_come_and_go_are_found() -> None:
    fields = find_fields(tried(joined_where_there, sometimes), flat=True)
    assert fields == {"count": Batched(), "rows": Sometimes(Batched())}
    assert list(fields) == ["count", "rows"]


def test_what_was_never_seen_missing_beside_images_that_have_it_is_not_guessed() -> None:
    batches = [[sometimes(number) for number in batch] for batch in ((1, 1), (2, 3), (3,))]
    with pytest.raises(Unexplained, match="no batch shows what becomes of images without the output 'rows'"):
        find_fields([(outputs, joined_where_there(outputs)) for outputs in batches], flat=True)


def test_names_that_no_image_of_the_batch_has_are_not_explained() -> None:
    def more(outputs: Rows) -> dict[str, Any]:
        return {**joined_where_there(outputs), "more": 1}

    def fewer(outputs: Rows) -> dict[str, Any]:
        return {"count": joined_where_there(outputs)["count"]}

    for make in (more, fewer):
        with pytest.raises(Unexplained, match="names of the outputs depend on the batch"):
            find_fields(tried(make, sometimes), flat=True)


def test_names_must_come_in_one_order() -> None:
    def turned(outputs: Rows) -> dict[str, Any]:
        joined = joined_where_there(outputs)
        return dict(reversed(joined.items())) if len(outputs) > 2 else joined

    with pytest.raises(Unexplained, match="order"):
        find_fields(tried(turned, sometimes), flat=True)


def test_without_a_batch_that_runs_nothing_is_explained() -> None:
    with pytest.raises(Unexplained, match="no batch"):
        find_fields([([single(1)], ValueError("no"))], flat=True)
