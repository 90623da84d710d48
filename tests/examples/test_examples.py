"""Each example is run as its reader runs it, without a network; what they share is tested by itself."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

SHARED = {"tiny_qwen2_vl.py"}

EXPECTED = {
    "quickstart.py": [
        "runs of the real processor: {'astronaut': 1, 'chelsea': 1, 'coffee': 1}",
        "4 hits, 3 misses, 3 items, ",
        "INFO mmcache: mmcache[quickstart] ",
        ": 7 images, hit 57.1% (lifetime 57.1%), coalesced 0, bypassed 0, ",
        "every output is the plain one, bit for bit",
    ],
    "decorator.py": [
        "without a version: __main__.embed cannot be identified safely: the global 'encoder' is a ",
        "runs: {'prepare': 2, 'embed': 1, 'decode': 1, 'prepare_batch': 3}",
        "every output is the plain one, bit for bit",
    ],
    "two_stage_engine.py": [
        "15 requests of ",
        "runs of the real processor: {'astronaut': 2, 'chelsea': 1, 'coffee': 1}",
        "every answer is the plain one",
    ],
    "many_questions.py": [
        "6 questions about each picture, runs of the real processor: {'astronaut': 1, 'chelsea': 1, 'coffee': 1}",
        "83% of the look-ups were hits",
        "every answer is the plain one",
    ],
    "rollouts.py": [
        "36 samples, runs of the real processor: {'astronaut': 1, 'chelsea': 1, 'coffee': 1}",
        "92.3% of the look-ups needed no run of their own",
        "every sample is the plain one",
    ],
}


def run(script: str, home: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run an example with an empty model cache, offline, without what the tests' own environment says of mmcache."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MMCACHE_")}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        env={**inherited, "HF_HUB_OFFLINE": "1", "HF_HOME": str(home), **environment},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("script", EXPECTED)
def test_an_example_runs_offline_and_says_what_it_is_expected_to(script: str, tmp_path: Path) -> None:
    done = run(script, tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert [line for line in EXPECTED[script] if line not in output] == [], output


def test_without_the_cache_the_quickstart_counts_more_runs_and_fails(tmp_path: Path) -> None:
    done = run("quickstart.py", tmp_path, MMCACHE_DISABLED="1")
    assert "runs of the real processor: {'astronaut': 2, 'chelsea': 3, 'coffee': 2}" in done.stdout
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


def test_every_example_is_run_by_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED) | SHARED


def test_the_tiny_model_is_made_the_same_each_time(tiny_qwen2_vl_module: ModuleType, tiny_qwen2_vl: Any) -> None:
    (processor, model), (again, twin) = tiny_qwen2_vl, tiny_qwen2_vl_module.tiny_qwen2_vl()
    assert processor.tokenizer.get_vocab() == again.tokenizer.get_vocab()
    assert tiny_qwen2_vl_module.same_bits(model.state_dict(), twin.state_dict())


def test_what_the_tiny_model_answers_depends_on_the_picture(
    tiny_qwen2_vl_module: ModuleType, tiny_qwen2_vl: Any
) -> None:
    """Without this, equal answers with and without the cache would say nothing about the pixels."""
    processor, model = tiny_qwen2_vl
    answers = []
    for picture in tiny_qwen2_vl_module.photographs("chelsea", "coffee").values():
        inputs = processor(text="<|image_pad|>", images=[picture.resize((280, 280))], return_tensors="pt")
        answers.append(model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, inputs["input_ids"].shape[1] :])
    assert answers[0].tolist() != answers[1].tolist()


def test_runs_are_counted_by_the_pictures_pixels(tiny_qwen2_vl_module: ModuleType) -> None:
    from transformers import Qwen2VLImageProcessor

    pictures = tiny_qwen2_vl_module.photographs("chelsea", "coffee", "rocket")
    cat, coffee, other = pictures["chelsea"], pictures["coffee"], pictures.pop("rocket")
    original = Qwen2VLImageProcessor.preprocess
    with tiny_qwen2_vl_module.counted_runs(Qwen2VLImageProcessor, pictures) as runs:
        processor: Any = Qwen2VLImageProcessor()
        counted = processor([cat, other, cat.copy()], return_tensors="pt")
        processor([[cat], [coffee]])
    assert runs == {"chelsea": 3, "coffee": 1}
    assert Qwen2VLImageProcessor.preprocess is original
    assert tiny_qwen2_vl_module.same_bits(counted, processor([cat, other, cat], return_tensors="pt"))
    assert dict(runs) == {"chelsea": 3, "coffee": 1}


def test_same_bits_sees_every_difference(tiny_qwen2_vl_module: ModuleType) -> None:
    import torch

    same_bits = tiny_qwen2_vl_module.same_bits
    zero, one = torch.zeros(2), torch.ones(2)
    assert same_bits({"a": zero, "b": one}, {"a": zero.clone(), "b": one.clone()})
    assert not same_bits({"a": zero, "b": one}, {"b": one, "a": zero})
    assert not same_bits({"a": zero}, {"a": -zero})
    assert not same_bits({"a": zero}, {"a": zero.reshape(1, 2)})
    assert not same_bits({"a": zero}, {"a": torch.zeros(2, dtype=torch.int32)})
    assert not same_bits({"a": zero}, {})
    assert same_bits({"a": one / 0 * 0}, {"a": one / 0 * 0})
