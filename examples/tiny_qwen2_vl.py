"""What the examples share: photographs, a tiny Qwen2-VL with random weights, and a count of the real processor's runs.

Nothing here needs a network or more than a second: the tokenizer is trained on six sentences, the model has a million
weights, and the photographs come with scikit-image. What it says makes no sense; how it is called is as in earnest.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import skimage.data
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)

_SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

_SENTENCES = (
    "You are asked about a photograph.",
    "What do you see in this picture?",
    "Which colours does it have?",
    "Who or what is in the foreground?",
    "Where was it taken, and when?",
    "The user asks and the assistant answers.",
)

_CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == "image" -%} <|vision_start|><|image_pad|><|vision_end|> {%- else -%} {{ part.text }} {%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

_runs = logging.getLogger("examples.runs")


def photographs(*names: str) -> dict[str, Image.Image]:
    """Return some of scikit-image's photographs ("astronaut", "chelsea", "coffee", "rocket") as RGB images."""
    return {name: Image.fromarray(getattr(skimage.data, name)()) for name in names}


def tiny_qwen2_vl() -> tuple[Qwen2VLProcessor, Qwen2VLForConditionalGeneration]:
    """Return a ``Processor`` and a model that fit together; the same weights each time."""
    tokenizer = _tokenizer()
    # Some constructors and methods of transformers are without types, here and below.
    processor = Qwen2VLProcessor(  # type: ignore[no-untyped-call]
        image_processor=Qwen2VLImageProcessor(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=_CHAT_TEMPLATE,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2VLForConditionalGeneration(_config(tokenizer))
    return processor, model.eval()  # type: ignore[no-untyped-call]


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL_TOKENS),
        padding_side="left",  # as generation needs it
    )


def _config(tokenizer: PreTrainedTokenizerFast) -> Qwen2VLConfig:
    ids = tokenizer.get_vocab()
    text = {
        "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]},
        "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"],
    }  # fmt: skip
    vision = {
        "depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    return Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )


def same_bits(cached: Mapping[str, torch.Tensor], plain: Mapping[str, torch.Tensor]) -> bool:
    """Whether two outputs have the same keys in the same order, and tensors of the same dtype, shape and bytes."""
    return [_bits(*output) for output in cached.items()] == [_bits(*output) for output in plain.items()]


def _bits(name: str, tensor: torch.Tensor) -> tuple[str, torch.dtype, torch.Size, bytes]:
    return name, tensor.dtype, tensor.shape, tensor.numpy().tobytes()


@contextmanager
def counted_runs(processor_class: type, images: Mapping[str, Image.Image]) -> Iterator[Counter[str]]:
    """Count how often the real ``preprocess`` of a class runs on each of these images, told by their pixels.

    To be entered before the processor is wrapped. The small pictures that mmcache tries a processor on do not count.
    """
    names = {image.tobytes(): name for name, image in images.items()}
    handler = _Count(names)
    original = processor_class.preprocess  # type: ignore[attr-defined]
    processor_class.preprocess = _reporting(original)  # type: ignore[attr-defined]
    _runs.addHandler(handler)
    try:
        yield handler.runs
    finally:
        _runs.removeHandler(handler)
        processor_class.preprocess = original  # type: ignore[attr-defined]


def _reporting(original: Callable[..., Any]) -> Callable[..., Any]:
    def preprocess(self: Any, images: Any, **options: Any) -> Any:
        # By a logger, since that has an identity; a counter, which changes, would make each run another processor's.
        _runs.info("the real processor runs", extra={"images": images})
        return original(self, images, **options)

    return preprocess


class _Count(logging.Handler):
    """Counts the images that it is told of."""

    def __init__(self, names: Mapping[bytes, str]) -> None:
        super().__init__()
        self.names, self.runs = names, Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.runs.update(self.names[pixels] for pixels in _pixels(vars(record)["images"]) if pixels in self.names)


def _pixels(images: Any) -> Iterator[bytes]:
    if isinstance(images, list | tuple):
        for image in images:
            yield from _pixels(image)
    elif isinstance(images, Image.Image):
        yield images.tobytes()


_runs.setLevel(logging.INFO)
_runs.propagate = False
