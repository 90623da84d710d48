"""Another few of all image processor classes with each seed, which ``MMCACHE_MATRIX_SEED`` gives."""

import os

import pytest

from tests.matrix.classes import image_processor_classes, sampled
from tests.matrix.judging import judge

SEED = os.environ.get("MMCACHE_MATRIX_SEED", "")

# About a minute.
COUNT = 12


@pytest.mark.skipif(not SEED, reason="MMCACHE_MATRIX_SEED is not set")
@pytest.mark.parametrize("name", sampled(image_processor_classes(), COUNT, SEED) if SEED else [""])
def test_a_sampled_image_processor_is_the_plain_one_to_the_bit(name: str) -> None:
    judgement = judge(name, SEED)
    assert not judgement.differences, f"{judgement.differences}\nagain: {judgement.again(SEED)}"
    assert judgement.calls or judgement.obstacle
