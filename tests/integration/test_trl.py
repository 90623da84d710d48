"""A real GRPO training run: the trainer processes each picture of a group again, twice; behind the cache, once."""

import copy
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers

import mmcache
from mmcache.layout.compare import difference
from tests.pictures import picture

with warnings.catch_warnings():
    # What these libraries warn of while they are imported is theirs.
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")

PICTURES = {"first": picture(31, 84, 56), "second": picture(32, 56, 56)}
GENERATIONS, STEPS = 4, 2


def unlike(completions: list[Any], **_: Any) -> list[float]:
    """A reward that tells samples apart, so that there is something to learn."""
    texts = [completion[0]["content"] for completion in completions]
    return [float(sum(map(ord, text)) % 97) for text in texts]


def trained(processor: Any, model: Any, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train on the two pictures for two steps; return what was logged and the weights."""
    rows = {
        "prompt": [[{"role": "user", "content": "What do you see in this picture?"}]] * len(PICTURES),
        "image": list(PICTURES.values()),
    }
    settings = trl.GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=len(PICTURES) * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=6,
        max_steps=STEPS,
        # A group is drawn anew for each step, as a trainer does that stays on its policy.
        num_iterations=1,
        learning_rate=0.01,
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=7,
    )
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=unlike,
        args=settings,
        train_dataset=datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()),
        processing_class=processor,
    )
    trainer.train()
    timeless = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second", "_time"))}
        for entry in trainer.state.log_history
    ]
    return timeless, dict(trainer.model.state_dict())


@pytest.mark.filterwarnings("ignore")  # what trainers warn of at their setup is theirs
def test_grpo_processes_each_picture_once_and_learns_the_same_to_the_bit(
    tmp_path: Path,
    tiny_qwen2_vl_module: ModuleType,
    tiny_qwen2_vl: tuple[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mmcache.wrapping.PATIENCE_SECONDS", 120.0)
    processor, model = tiny_qwen2_vl
    runs: dict[str, Counter[str]] = {}
    results: dict[str, Any] = {}
    with mmcache.Cache("256MiB", name="trl", verify_rate=0, max_overhead=1) as cache:
        for how, made in (("plain", copy.deepcopy(processor)), ("wrapped", mmcache.wrap(processor, cache))):
            original = transformers.Qwen2VLImageProcessor.preprocess
            with tiny_qwen2_vl_module.counted_runs(transformers.Qwen2VLImageProcessor, PICTURES) as counts:
                # Invisible to the identity of the class: code from outside transformers may tell None from nothing.
                transformers.Qwen2VLImageProcessor.preprocess.__mmcache_original__ = original
                transformers.set_seed(7)
                results[how] = trained(made, copy.deepcopy(model), tmp_path / how)
            runs[how] = Counter(counts)
        info = cache.cache_info()

    assert runs["plain"].total() == len(PICTURES) * GENERATIONS * 2 * STEPS == 32
    # The trainer asks for lists when it generates and for tensors when it learns: both are made of one item.
    assert runs["wrapped"] == dict.fromkeys(PICTURES, 1)
    assert info.misses == len(PICTURES)
    assert info.bypassed == 0, info.bypass_reasons
    assert info.errors == 0
    logged, weights = results["plain"]
    assert [entry["step"] for entry in logged if "loss" in entry] == [1, 2]
    assert any(entry["grad_norm"] > 0 for entry in logged if "loss" in entry), "nothing was learned"
    assert results["wrapped"][0] == logged
    assert difference(weights, results["wrapped"][1]) == ""
