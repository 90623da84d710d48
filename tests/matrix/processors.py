"""Every full ``Processor`` of transformers that takes text and images, built without a network."""

import copy
import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import transformers
import transformers.models
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.auto import (
    feature_extraction_auto,
    image_processing_auto,
    processing_auto,
    video_processing_auto,
)
from transformers.processing_utils import ProcessorMixin

QUESTION = "What is it?"

_BACKENDS = ("torchvision", "pil")

# Which mapping says the class of a part, by the attribute's name.
_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "image_processor": vars(image_processing_auto)["IMAGE_PROCESSOR_MAPPING_NAMES"],
    "video_processor": vars(video_processing_auto)["VIDEO_PROCESSOR_MAPPING_NAMES"],
    "feature_extractor": vars(feature_extraction_auto)["FEATURE_EXTRACTOR_MAPPING_NAMES"],
    "audio_processor": vars(feature_extraction_auto)["FEATURE_EXTRACTOR_MAPPING_NAMES"],
}

# What checkpoints give to constructors that have no defaults of their own.
_ARGUMENTS: dict[str, Any] = {
    "patch_size": 14,
    "vision_feature_select_strategy": "default",
    "num_query_tokens": 32,
    "num_image_tokens": 576,
}

_STANDARD_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")

# How a source names a token of its tokenizer, how it asks whether there is one, and how tokens look that it writes out.
_NAMED = re.compile(r"\btokenizer\.(?!add_)(\w+_token)(?:_id)?\b")
_ASKED = re.compile(r"""(?:hasattr|getattr)\(\s*(?:self\.)?tokenizer,\s*["'](\w+?_token)(?:_id)?["']""")
_WRITTEN = re.compile(r"""["'](<[^\s<>"'{}()]+>|\[[A-Z_]+\]|\|[A-Z]+\||\]<\][a-z_ ]+\[>\[)["']""")


class _Prefixing(transformers.PreTrainedTokenizerFast):
    """Puts a token before each text, as SentencePiece does; Fuyu cuts it off again."""

    def __call__(self, text: str, **options: Any) -> Any:
        return super().__call__(f"_{text}", **options)


@dataclass(frozen=True)
class Family:
    """What one ``Processor`` needs beyond what the mappings, its constructor and its source tell."""

    parts: Mapping[str, str] = field(default_factory=dict)
    """Classes by attribute, where no mapping names them."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that its checkpoints give to the image processor."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """What its own constructor is given."""
    tokens: Sequence[str] = ()
    """Names of tokens that it asks its tokenizer for, and cannot do without."""
    tokenizer: str = ""
    """The class of its tokenizer, if it takes no other; made with that class's own tiny vocabulary."""
    tokenizer_base: Any = transformers.PreTrainedTokenizerFast
    """The class of its tokenizer, if it takes any."""
    placeholder: str | None = "{image_token}"
    """What stands for one image in a text, of the attributes of the processor; None if it takes images alone."""
    question: Any = QUESTION
    """What follows in each text; where this is no string, it is the text."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"padding": True})
    """Options of each call."""
    per_text: Mapping[str, Any] = field(default_factory=dict)
    """Options of each call that are lists: the entry for one text."""
    whole_samples: bool = False
    """Whether an image's outputs depend on the others of its sample, so that a sample with a new image is all new."""
    reason: str = ""
    """Why it cannot be built."""


_WORDS = ["What", "is", "it"]
_LAYOUT: dict[str, Any] = {
    "settings": {"apply_ocr": False},  # else it asks for Tesseract
    "placeholder": "",
    "question": _WORDS,
    "per_text": {"boxes": [[1, 2, 3, 4]] * len(_WORDS)},
}

# Image processors that no mapping of transformers 4 names.
_ONCE_UNNAMED = {
    "AltCLIPProcessor": "CLIPImageProcessor",
    "AyaVisionProcessor": "GotOcr2ImageProcessor",
    "Emu3Processor": "Emu3ImageProcessor",
    "InternVLProcessor": "GotOcr2ImageProcessor",
    "LlavaNextVideoProcessor": "LlavaNextImageProcessor",
    "NougatProcessor": "NougatImageProcessor",
    "OmDetTurboProcessor": "DetrImageProcessor",
    "Qwen2_5OmniProcessor": "Qwen2VLImageProcessor",
    "Qwen3OmniMoeProcessor": "Qwen2VLImageProcessor",
    "TrOCRProcessor": "ViTImageProcessor",
    "VideoLlavaProcessor": "VideoLlavaImageProcessor",
}

_FAMILIES: dict[str, Family] = {
    **{name: Family(parts={"image_processor": part}) for name, part in _ONCE_UNNAMED.items()},
    "ColModernVBertProcessor": Family(parts={"image_processor": "Idefics3ImageProcessor"}),
    "ColPaliProcessor": Family(
        parts={"image_processor": "SiglipImageProcessor"},
        settings={"image_seq_length": 256},
        placeholder=None,
        options={},
    ),
    "ColQwen2Processor": Family(parts={"image_processor": "Qwen2VLImageProcessor"}, placeholder=None, options={}),
    "DonutProcessor": Family(parts={"image_processor": "DonutImageProcessor"}),
    "Florence2Processor": Family(
        parts={"image_processor": "CLIPImageProcessor"}, settings={"image_seq_length": 577}, placeholder=""
    ),
    "FuyuProcessor": Family(tokenizer_base=_Prefixing, placeholder=""),
    "Gemma3Processor": Family(placeholder="{boi_token}"),
    "Gemma4Processor": Family(tokens=("audio_token", "boa_token", "eoa_token")),
    "Gemma4UnifiedProcessor": Family(tokens=("audio_token", "boa_token", "eoa_token")),
    "HunYuanVLProcessor": Family(placeholder="{image_start_token}{image_token}{image_end_token}"),
    "Kosmos2Processor": Family(parts={"image_processor": "CLIPImageProcessor"}),
    "Kosmos2_5Processor": Family(parts={"image_processor": "Kosmos2_5ImageProcessor"}),
    "LayoutLMv2Processor": Family(tokenizer="LayoutLMv2TokenizerFast", **_LAYOUT),
    "LayoutLMv3Processor": Family(tokenizer="LayoutLMv3TokenizerFast", **_LAYOUT),
    "LayoutXLMProcessor": Family(
        parts={"image_processor": "LayoutLMv2ImageProcessor"}, tokenizer="LayoutXLMTokenizerFast", **_LAYOUT
    ),
    "LlavaOnevisionProcessor": Family(whole_samples=True),
    "MgpstrProcessor": Family(reason="its constructor fetches the tokenizers of GPT-2 and BERT"),
    "NemotronH_Omni_Reasoning_V3Processor": Family(parts={"feature_extractor": "ParakeetFeatureExtractor"}),
    "NeoMMEProcessor": Family(placeholder="<document_token>{image_token}", question=""),
    "OneFormerProcessor": Family(placeholder=None, options={}, per_text={"task_inputs": "semantic"}),
    "PaliGemmaProcessor": Family(settings={"image_seq_length": 256}),
    "PI0Processor": Family(settings={"image_seq_length": 256}),
    "QianfanOCRProcessor": Family(placeholder="<image>"),
    "Sam3Processor": Family(options={}),
    "Sam3VideoProcessor": Family(parts={"video_processor": "Sam2VideoVideoProcessor"}, placeholder=None, options={}),
    "ShieldGemma2Processor": Family(
        placeholder=None,
        options={},
        arguments={"chat_template": "{{ messages[0].content[0].type }}<boi_token>"},
    ),
    "UdopProcessor": Family(tokenizer="UdopTokenizerFast", **_LAYOUT),
    "VisionTextDualEncoderProcessor": Family(parts={"image_processor": "ViTImageProcessor"}),
    "XCLIPProcessor": Family(parts={"image_processor": "CLIPImageProcessor"}),
}


@dataclass(frozen=True)
class Ready:
    """A processor that was built, and how it is called."""

    processor: Any
    family: Family

    def text(self, images: int) -> Any:
        """Return the text of a sample with so many images."""
        if not isinstance(self.family.question, str):
            return self.family.question
        assert self.family.placeholder is not None, "only asked for where texts are taken"
        return self._placeholder * images + self.family.question

    @property
    def _placeholder(self) -> str:
        template = self.family.placeholder or ""
        names = re.findall(r"{(\w+)}", template)
        return template.format(**{name: str(getattr(self.processor, name, None) or "") for name in names})

    def options(self, texts: int) -> dict[str, Any]:
        """Return the options that each call with so many texts needs."""
        return {**self.family.options, **{name: [value] * texts for name, value in self.family.per_text.items()}}

    def call(self, processor: Any, samples: Sequence[Sequence[Any]], *, nested: bool = False, **options: Any) -> Any:
        """Call this processor, or a wrapped one, with a text for each sample of images."""
        given = self.options(len(samples))
        if self.family.placeholder is not None:
            given["text"] = [self.text(len(sample)) for sample in samples]
        images = [list(sample) for sample in samples] if nested else [image for sample in samples for image in sample]
        # Deep, since some change what they are given in place.
        return processor(images=images, **copy.deepcopy({**given, **options}))

    def placeholder_tokens(self, inputs: Mapping[str, Any]) -> int:
        """Count the tokens that stand for images in the ids of an expanded text, in tensors or lists."""
        listed = inputs["input_ids"]
        samples = listed.tolist() if hasattr(listed, "tolist") else listed
        return sum(token in self._placeholder_ids for sample in samples for token in sample)

    @functools.cached_property
    def _placeholder_ids(self) -> list[int]:
        ids = getattr(self.processor, "image_token_ids", None) or [getattr(self.processor, "image_token_id", None)]
        word = getattr(self.processor, "image_token", None)
        if ids == [None] and word is not None:
            ids = [self.processor.tokenizer.convert_tokens_to_ids(str(word))]
        return [number for number in ids if number is not None]


class CannotBeBuilt(Exception):
    """No such processor here; its text says why."""


@functools.cache
def processor_classes() -> dict[str, Any]:
    """Return every ``Processor`` class of transformers that has an image processor and a tokenizer, by name."""
    found: dict[str, Any] = {}
    for module in _modules():
        for name, cls in vars(module).items():
            if inspect.isclass(cls) and issubclass(cls, ProcessorMixin) and cls.__module__ == module.__name__:
                attributes = attributes_of(cls)
                if "image_processor" in attributes and any("tokenizer" in attribute for attribute in attributes):
                    found[name] = cls
    return dict(sorted(found.items()))


def _modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.walk_packages(transformers.models.__path__, "transformers.models.")]
    return [importlib.import_module(name) for name in names if name.rpartition(".")[2].startswith("processing_")]


def attributes_of(cls: Any) -> list[str]:
    """Return the names of a processor's parts, which transformers 4 and 5 say in different ways."""
    return list(cls.get_attributes() if hasattr(cls, "get_attributes") else cls.attributes)


def build(name: str) -> Ready:
    """Build a processor with default parts and a tiny tokenizer.

    Raises:
        CannotBeBuilt: this transformers has no such class, or the family says why not.
        Exception: what its constructor or those of its parts raise.
    """
    family = _FAMILIES.get(name, Family())
    if family.reason:
        raise CannotBeBuilt(family.reason)
    if name not in processor_classes():
        raise CannotBeBuilt(f"transformers {transformers.__version__} has no {name}")
    cls = processor_classes()[name]
    parts = {attribute: _part(cls, family, attribute) for attribute in attributes_of(cls)}
    # SmolVLM's asks for a package that only its texts about videos need.
    with mock.patch.object(sys.modules[cls.__module__], "num2words", str, create=True):
        return Ready(cls(**{**_arguments(cls), **parts, **family.arguments}), family)


def _arguments(cls: Any) -> dict[str, Any]:
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {
        parameter.name: _ARGUMENTS[parameter.name]
        for parameter in parameters
        if parameter.name in _ARGUMENTS and parameter.default in (None, inspect.Parameter.empty)
    }


def _part(cls: Any, family: Family, attribute: str) -> Any:
    if "tokenizer" in attribute:
        return getattr(transformers, family.tokenizer)() if family.tokenizer else tiny_tokenizer(cls, family)
    part = getattr(transformers, _part_class(cls, family, attribute))()
    if attribute == "image_processor":
        for name, value in family.settings.items():
            setattr(part, name, value)
    return part


def _part_class(cls: Any, family: Family, attribute: str) -> str:
    """Return the name of a part's class: what the mappings say for one of its model types, or else the family's."""
    only = _preferred(getattr(cls, f"{attribute}_class", None))  # transformers 4
    if only and not only.startswith("Auto"):
        return only
    for model_type, name in vars(processing_auto)["PROCESSOR_MAPPING_NAMES"].items():
        if name == cls.__name__ and (found := _preferred(_MAPPINGS[attribute].get(model_type))):
            return found
    if attribute in family.parts:
        return family.parts[attribute]
    raise CannotBeBuilt(f"no mapping names its {attribute}")


def _preferred(entry: Any) -> str | None:
    """Return the torchvision class of a mapping's entry: a name, one for each backend, or slow and fast."""
    if isinstance(entry, Mapping):
        return next((entry[backend] for backend in _BACKENDS if entry.get(backend)), None)
    if isinstance(entry, tuple):
        return next((name for name in reversed(entry) if name), None)
    return entry if isinstance(entry, str) else None


def tiny_tokenizer(cls: Any, family: Family) -> Any:
    """Return a tokenizer of bytes that knows every special token which the source of a processor class names."""
    source = "".join(
        inspect.getsource(sys.modules[base.__module__])
        for base in cls.__mro__
        if base.__module__.startswith("transformers.models.")
    )
    named = (set(_NAMED.findall(source)) - set(_ASKED.findall(source)) - set(_STANDARD_TOKENS)) | set(family.tokens)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_level = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    tokenizer = family.tokenizer_base(
        tokenizer_object=byte_level,
        extra_special_tokens={name: "<image>" if name == "image_token" else f"<{name}>" for name in sorted(named)},
        **{name: f"<{name}>" for name in _STANDARD_TOKENS},
    )
    if asked := _asked_class(cls):
        tokenizer.__class__ = asked
        vars(tokenizer).update(_add_bos_token=False, _add_eos_token=False)  # as its constructor would
    tokenizer.add_tokens(sorted(set(_WRITTEN.findall(source))), special_tokens=True)
    return tokenizer


def _asked_class(cls: Any) -> Any:
    """Return the class of tokenizer that transformers 4 takes for a processor, if not any."""
    asked = getattr(cls, "tokenizer_class", None) or ()
    names = [asked] if isinstance(asked, str) else [name for name in asked if name]
    return next((getattr(transformers, name) for name in names if name.endswith("Fast")), None)
