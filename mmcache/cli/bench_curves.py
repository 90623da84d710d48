"""The two curves of ``--plot``: what a picture costs by its size, and how many pass a second by hit rate."""

import statistics
from dataclasses import dataclass

import mmcache
from mmcache.cli.bench_engine import Cost, Effort, Workbench, repeated, timed, torch_threads
from mmcache.cli.bench_photograph import copying
from mmcache.cli.bench_pictures import FULL_HD, ULTRA_HD, XGA, Changing, Size, decoded, distinct, encoded, photograph
from mmcache.cli.bench_processors import QWEN2_VL, image_processor

_SIZES = ((320, 240), (640, 480), XGA, FULL_HD, ULTRA_HD)

# Small enough that a batch of it takes a fraction of a second.
_BATCH, _BATCH_SIZE = 8, (640, 480)


@dataclass(frozen=True)
class Curve:
    """Lines over one axis: for each name, a number for each of ``at``."""

    at: list[float]
    lines: dict[str, list[float]]


def cost_by_size(effort: Effort) -> Curve:
    """Return milliseconds of one picture by its megapixels: plain, decode (JPEG), hit, and the floor of a hit."""
    columns = [_costs(effort, size) for size in _SIZES]
    lines = {name: [1e3 * column[name] for column in columns] for name in columns[0]}
    return Curve([width * height / 1e6 for width, height in _SIZES], lines)


def throughput_by_hit_rate(effort: Effort) -> Curve:
    """Return pictures a second by hit rate, plain and with mmcache, in batches of 8 with one torch thread."""
    rates = [hits / _BATCH for hits in range(0, _BATCH + 1, 2)]
    pairs = [_throughput(effort, round(_BATCH * (1 - rate))) for rate in rates]
    return Curve(rates, {"plain": [plain for plain, _ in pairs], "mmcache": [cached for _, cached in pairs]})


def _costs(effort: Effort, size: Size) -> dict[str, float]:
    with torch_threads(1), Workbench(effort) as bench:
        image, plain = photograph(size), image_processor(QWEN2_VL)
        wrapped, data = mmcache.wrap(plain, bench.cache()), encoded(image, "JPEG")
        bench.warm_up(lambda: wrapped(images=image, return_tensors="pt"))
        costs: dict[str, Cost] = {
            "plain": timed(lambda: plain(images=image, return_tensors="pt")),
            "decode": timed(lambda: decoded(data)),
            "hit": timed(lambda: wrapped(images=image, return_tensors="pt")),
            "floor": timed(copying(plain(images=image, return_tensors="pt"))),
        }
        columns = repeated(list(costs.values()), effort)
        return {name: statistics.median(column) for name, column in zip(costs, columns, strict=True)}


def _throughput(effort: Effort, misses: int) -> tuple[float, float]:
    with torch_threads(1), Workbench(effort) as bench:
        pictures, plain = (
            [Changing(distinct(_BATCH_SIZE, number)) for number in range(_BATCH)],
            image_processor(QWEN2_VL),
        )
        wrapped = mmcache.wrap(plain, bench.cache(256 << 20))

        def change() -> None:
            for picture in pictures[:misses]:
                picture.change()

        def outputs(processor: object) -> object:
            return processor(images=[picture.image for picture in pictures], return_tensors="pt")  # type: ignore[operator]

        pair = bench.in_turn(lambda: outputs(wrapped), lambda: outputs(plain), before=change)
        other, ours = repeated((pair.other, pair.ours), effort)
        return _BATCH / statistics.median(other), _BATCH / statistics.median(ours)
