"""The table of the benchmark: every row, in the order in which it is measured and shown."""

from mmcache.cli import (
    bench_batches,
    bench_evaluation,
    bench_fingerprints,
    bench_memory,
    bench_photograph,
    bench_scenarios,
    bench_trials,
    bench_vllm,
)

ROWS = (
    *bench_fingerprints.ROWS,
    *bench_photograph.ROWS,
    *bench_evaluation.ROWS,
    *bench_batches.ROWS,
    *bench_memory.ROWS,
    *bench_vllm.ROWS,
    *bench_scenarios.ROWS,
    *bench_trials.ROWS,
)
