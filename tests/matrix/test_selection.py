"""Wrapped equals plain for image processors chosen for their variety; all of them: ``python -m tests.matrix``."""

import pytest

from tests.matrix.classes import image_processor_classes
from tests.matrix.judging import judge

SEED = "selection"

# Each joins, pads, splits or refuses in its own way.
FAMILIES = {
    "CLIPImageProcessor": "a row for each image",
    "CLIPImageProcessorPil": "the same, of arrays",
    "Qwen2VLImageProcessor": "as many rows as an image has patches",
    "ViltImageProcessor": "padded to the largest of the batch, with a mask",
    "MllamaImageProcessor": "a flat list is one sample",
    "LlavaNextImageProcessor": "padded to the image with most tiles",
    "LlavaOnevisionImageProcessor": "an image that is alone in its sample is another one",
    "MiniCPMV4_6ImageProcessor": "images follow each other on the last dim",
    "AriaImageProcessor": "the largest number of crops",
    "Molmo2ImageProcessor": "indices with a running offset",
    "Step3p7ImageProcessor": "outputs that only some images have",
    "Llama4ImageProcessor": "bfloat16, which NumPy does not know",
    "FlavaImageProcessor": "random masks, if asked for",
    "PPOCRV5ServerRecImageProcessor": "the widest image decides",
}

# Where the widest image of a batch decides, there is nothing to join.
ALONE_ONLY = {"PPOCRV5ServerRecImageProcessor"}

# Reasons that must be among those of the calls that went to the plain processor.
BYPASSED = {
    "FlavaImageProcessor": "it draws random numbers",
    "PPOCRV5ServerRecImageProcessor": "no layout explains how 'pixel_values' of a batch is made from single images",
}


def installed(family: str) -> list[str]:
    """Return the classes of a family: transformers 4 has a fast one beside the slow one of that name."""
    return [name for name in (family, f"{family}Fast") if name in image_processor_classes()]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrapped_image_processor_is_the_plain_one_to_the_bit_and_served_from_the_cache(family: str) -> None:
    names = installed(family)
    if not names:
        pytest.skip("not in the installed transformers")
    judgements = [judge(name, SEED) for name in names]
    for judgement in judgements:
        assert not judgement.differences, f"{judgement.differences}\nagain: {judgement.again(SEED)}"
        assert not judgement.obstacle
        assert "one" in judgement.served
        assert judgement.calls > judgement.refused
        assert judgement.served_in_batches is (family not in ALONE_ONLY), judgement.bypassed
    reasons = [reason for judgement in judgements for reason in judgement.bypassed]
    assert family not in BYPASSED or any(BYPASSED[family] in reason for reason in reasons), reasons
