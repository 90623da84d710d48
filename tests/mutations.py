"""A check of the tests: one rule of the package is broken at a time, and a test has to fail.

``python -m tests.mutations [--only N ...] [--jobs N]`` works on copies of the checkout and prints for each mutation the
first test that fails, or that it survived.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parent.parent

# What the tests need of it, beside its settings.
_DIRECTORIES = ("mmcache", "tests", "examples")

# All selections together take less: a mutation that hangs is none that a test found.
_LONGEST_SECONDS = 600.0

# The first failing test of pytest's short summary.
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class Mutation(NamedTuple):
    """One rule broken: ``text``, which stands in a module exactly once, becomes ``instead``."""

    what: str
    text: str
    instead: str
    tests: str = ""
    """What pytest is to run; by default the file that mirrors the module."""


NASTY = "tests/test_nasty.py"
PITFALLS = "tests/test_pitfalls.py"
TRIAL = "tests/layout/test_trial.py"
KINDS = f"{TRIAL}::test_kinds_of_sources_are_told_apart"
FIELDS = "tests/layout/test_fields.py"
RARE = "tests/layout/test_rare.py"
FAMILY = "tests/layout/test_special_families.py::test_a_special_family_gets_the_layout_that_it_has_and_it_holds_for_new_pictures"
CONVERSION = "tests/layout/test_conversion.py"
IDENTITY = "tests/fingerprints/test_identity.py"
CODE = "tests/fingerprints/test_code.py"
SOURCES = "tests/fingerprints/test_sources.py"
FUNCTIONS = "tests/test_functions.py"
VERIFICATION = "tests/test_verification.py"
WRAPPING = "tests/test_wrapping.py"
MODES = f"{WRAPPING}::test_each_kind_of_image_has_a_trial_and_a_layout_of_its_own"
MEANWHILE = f"{WRAPPING}::TestWhatOthersDoMeanwhile"
KEY = "tests/test_cache.py::test_each_part_of_a_key_makes_another_one"
SCHEME = "tests/test_cache.py::test_another_scheme_makes_another_key"

# A row is a line, or two or three where its texts are long.
# fmt: off
MUTATIONS: dict[str, Sequence[Mutation]] = {
    "layout/arrays.py": (
        Mutation("the value of padding is ignored", "_fill(whole, pad)", "_fill(whole, 0)", FIELDS),
        Mutation("padding is at the front",
                 "[slice(0, size) for size in part.shape]",
                 "[slice(most - size, most) for size, most in zip(part.shape, target, strict=True)]", FIELDS),
        Mutation("unequal sizes are joined without padding",
                 "if pad is None and len(others) > 1:", "if False:", FIELDS),
        Mutation("dtypes are not compared", " or len({part.dtype for part in parts}) > 1", "", FIELDS),
        Mutation("arrays in lists are not padded",
                 "return [_place([entry], target, 0, pad) for entry in entries]",
                 "return [copy_tree(entry) for entry in entries]", FIELDS),
        Mutation("of a row of padding only its first value is used",
                 "whole.new_tensor(pad) if isinstance(pad, tuple) and is_tensor(whole) else pad",
                 "pad[0] if isinstance(pad, tuple) else pad", RARE),
    ),
    "layout/fields.py": (
        Mutation("Batched joins on dim 1",
                 'their other dims must agree."""\n\n    def join(self, parts: Sequence[Any]) -> Any:\n        """Concatenate on dim 0."""\n        return join(parts, axis=0)',
                 'their other dims must agree."""\n\n    def join(self, parts: Sequence[Any]) -> Any:\n        """Concatenate on dim 0."""\n        return join(parts, axis=1)'),
        Mutation("FlatFromSizes joins on dim 1",
                 'sizes: str\n\n    def join(self, parts: Sequence[Any]) -> Any:\n        """Concatenate on dim 0."""\n        return join(parts, axis=0)',
                 'sizes: str\n\n    def join(self, parts: Sequence[Any]) -> Any:\n        """Concatenate on dim 0."""\n        return join(parts, axis=1)'),
        Mutation("Padded joins on dim 1", "axis=0, pad=self.value", "axis=1, pad=self.value"),
        Mutation("Padded does not pad", "axis=0, pad=self.value", "axis=0"),
        Mutation("Nested joins on dim 0", "axis=1, pad=self.value", "axis=0, pad=self.value"),
        Mutation("Nested pads with 0 whatever its value", "axis=1, pad=self.value", "axis=1, pad=0"),
        Mutation("PerImageList takes what is no list",
                 "if not all(isinstance(part, list) for part in parts):", "if False:"),
        Mutation("Same does not compare", 'if found := difference(first, expanded(part)):', 'if found := "":'),
        Mutation("the names of outputs are not compared", "    if not fitting:", "    if False:"),
        Mutation("the order of outputs is not compared",
                 "all(list(output) == names for output in outputs)",
                 "all(set(output) == set(names) for output in outputs)"),
        Mutation("attributes of a batch are dropped",
                 "twin.__dict__.update(attributes, data=dict(values))", "twin.__dict__.update(data=dict(values))"),
        Mutation("samples are all as long as the first",
                 "for _ in range(count)]) for count in counts", "for _ in range(counts[0])]) for count in counts"),
        Mutation("samples join like images", "self.fields if self.samples is None else self.samples", "self.fields"),
        Mutation("whole samples are made of images", "        if self.whole_samples:", "        if False:", RARE),
    ),
    "layout/rare.py": (
        Mutation("Along joins on dim 0", "axis=self.axis", "axis=0"),
        Mutation("PaddedLists pads with 0 whatever its value", "[self.value] * (longest", "[0] * (longest"),
        Mutation("PaddedLists pads at the front",
                 "entry + [self.value] * (longest - len(entry))", "[self.value] * (longest - len(entry)) + entry"),
        Mutation("the largest number is the first", "return max(parts)", "return parts[0]"),
        Mutation("the largest array is the first", "join(stacked, 0).amax(0) if", "stacked[0][0] if"),
        Mutation("running offsets do not run", "moved = part + by", "moved = part"),
        Mutation("running offsets run by one dim more", "beside.shape[: self.dims]", "beside.shape[: self.dims + 1]"),
        Mutation("running offsets count the image itself",
                 "itertools.accumulate([0, *taken[:-1]])", "itertools.accumulate(taken)"),
        Mutation("indices that point nowhere are moved",
                 "part.where(part < 0, moved) if is_tensor(part) else np.where(part < 0, part, moved)", "moved"),
        Mutation("codes have no sizes to move by",
                 "if not is_placed(beside) or", "if not hasattr(beside, 'ndim') or",
                 "tests/layout/test_coding.py::test_every_field_joins_codes_as_what_they_stand_for"),
        Mutation("indices overflow", "if by >= 1 << (8 * part.dtype.itemsize - 1):", "if False:"),
        Mutation("Sometimes leaves out what should be empty rows", "if self.empty_rows == 0:", "if True:"),
        Mutation("Sometimes keeps one empty row for any number", "shape = (self.empty_rows,", "shape = (1,"),
    ),
    "layout/candidates.py": (
        Mutation("padding is tried before plain rows",
                 "    yield Batched()\n    yield from map(Padded, pads)\n",
                 "    yield from map(Padded, pads)\n    yield Batched()\n"),
        Mutation("rare fields are tried before the usual",
                 "    yield from _plain_candidates(name, tried, flat=flat)\n    yield from (Along(-1), Along(-2), Same(), Largest())",
                 "    yield from (Along(-1), Along(-2), Same(), Largest())\n    yield from _plain_candidates(name, tried, flat=flat)"),
        Mutation("the largest is tried before equality", "Same(), Largest())", "Largest(), Same())"),
        Mutation("one batch explained is enough", "if not any(difference(", "if not all(difference("),
        Mutation("padding is 0 or 1 only", "itertools.chain((0, 1), lasts)", "(0, 1)"),
        Mutation("rows of padding are not looked for",
                 "[*_pad_values(values), *_pad_rows(values)]", "[*_pad_values(values)]"),
        Mutation("padding of lists has no type", "{(type(value), value): value for", "{value: value for"),
        Mutation("empty rows are not looked for",
                 "for rows in (0, 1) for", "for rows in (0,) for", f"{FAMILY}[Step3p7ImageProcessor]"),
        Mutation("offsets by images are not looked for", "for dims in range(len(", "for dims in range(1, len("),
        Mutation("a batch may have names that its images lack",
                 "if set(batch) != {name for output in outputs for name in output}:", "if False:"),
        Mutation("names may come in any order",
                 "if any(list(output) != [name for name in names if name in output] for output in everything):",
                 "if False:"),
        Mutation("what becomes of a missing output is guessed", "    if not any(mixed):\n", "    if False:\n"),
    ),
    "layout/compare.py": (
        Mutation("numbers are compared as numbers", "expected.hex() == found.hex()", "expected == found"),
        Mutation("in arrays 0.0 equals -0.0",
                 "if not np.array_equal(_bytes(expected), _bytes(found)):",
                 "if not np.array_equal(_bytes(expected), _bytes(found)) and not bool((expected == found).all()):"),
        Mutation("in arrays NaN differs from itself",
                 "if not np.array_equal(_bytes(expected), _bytes(found)):", "if not bool((expected == found).all()):"),
        Mutation("dtypes are not compared",
                 "(expected.dtype, tuple(expected.shape)), (found.dtype, tuple(found.shape))",
                 "tuple(expected.shape), tuple(found.shape)"),
        Mutation("shapes are not compared",
                 "(expected.dtype, tuple(expected.shape)), (found.dtype, tuple(found.shape))",
                 "expected.dtype, found.dtype"),
        Mutation("devices are not compared",
                 "if is_tensor(expected) and expected.device != found.device:", "if False:"),
        Mutation("attributes of a batch are not compared",
                 'difference(_attributes(expected), _attributes(found), "attributes")', '""'),
        Mutation("the order of keys is not compared",
                 "if list(expected) != list(found):", "if set(expected) != set(found):"),
        Mutation("types are not compared", "if type(expected) is not type(found):", "if False:"),
    ),
    "layout/conversion.py": (
        Mutation("the order in memory is not compared",
                 " and all(_contiguous(one) == _contiguous(other) for one, other in pairs)", ""),
        Mutation("no name is converted", "if n in self.names else value for n", "if False else value for n"),
        Mutation("every name is converted", "if n in self.names else value for n", "if True else value for n"),
        Mutation("what was found is not compared", "return conversion if exact else None", "return conversion"),
        Mutation("only the first pair is compared",
                 "conversion.apply(lists)) for lists, asked in pairs)",
                 "conversion.apply(lists)) for lists, asked in pairs[:1])"),
        Mutation("long lists are made tensors at each hit", "len(leaves) <= _MOST_NUMBERS and", ""),
    ),
    "layout/trial.py": (
        Mutation("one picture twice is not compared",
                 'agree(singles[0][1], call(wrapped(probes[0])), "one', 'agree(singles[0][1], singles[0][1], "one'),
        Mutation("an image alone is not compared with a list of it",
                 "agree(singles[0][1], call(probes[0]), ", "agree(singles[0][1], singles[0][1], "),
        Mutation("the batch that is held out is not compared",
                 "for outputs, expected in (*tried, kept_back):", "for outputs, expected in tried:"),
        Mutation("geometry is always steady", "        steady = all(", "        steady = True or all("),
        Mutation("a random processor is served with a list of one",
                 'alone = form == "flat" and str(found) != DRAWS', 'alone = form == "flat"'),
        Mutation("a nested list of one is served where nothing is proved", 'alone = form == "flat" and', "alone ="),
        Mutation("whole samples are converted untried", "        if layout.whole_samples:  #", "        if False:  #"),
        Mutation("the conversion of an image alone is not compared with a list of it",
                 "agree(made[0][1], lists(singles[0][0]), ", "agree(made[0][1], made[0][1], "),
        Mutation("kinds of images are not tried together",
                 "for batch in ([0, 1], [1, 0], everything, everything[::-1]):", "for batch in ():", NASTY),
    ),
    "layout/outcomes.py": (
        Mutation("random numbers are not noticed",
                 "            if random_states() == before:\n", "            if True:\n", TRIAL),
        Mutation("random numbers of other threads are the processor's",
                 "            if random_states() == after:\n", "            if True:\n", TRIAL),
        Mutation("the generators are not put back", "                first.restore()\n", "", TRIAL),
        Mutation("a batch may raise though its images do not",
                 '        raise Disagreement(f"{what} raises', '        return print(f"{what} raises', TRIAL),
        Mutation("a batch that cannot be joined counts as refused",
                 "        if not isinstance(expected, Exception):\n", "        if False:\n", TRIAL),
    ),
    "layout/nesting.py": (
        Mutation("the nested batch that is held out is not compared",
                 "(*NESTED_BATCHES, NESTED_HELD_OUT)", "NESTED_BATCHES", TRIAL),
        Mutation("images are not tried as whole samples",
                 "(_joined_flat, _joined_by_samples, _joined_whole)", "(_joined_flat, _joined_by_samples)", TRIAL),
    ),
    "layout/probes.py": (
        Mutation("no picture has a margin", '(48, 64, "framed")', '(48, 64, "noise")', f"{PITFALLS}::test_a_margin_that_is_cut_off_makes_the_geometry_the_pictures_own"),
        Mutation("a transparency is no trait",
                 'return "image", mode, transparent, *', 'return "image", mode, *', KINDS),
        Mutation("a mode is no trait",
                 'return "image", mode, transparent, *', 'return "image", transparent, *', KINDS),
        Mutation("a side that may be channels is no trait",
                 "side if side <= _MOST_CHANNELS else 0 for side", "0 for side", KINDS),
        Mutation("a dtype is no trait",
                 "return kind, str(source.dtype), len(shape), channels[:2]",
                 "return kind, len(shape), channels[:2]", KINDS),
        Mutation("the place of the channels is no trait", "len(shape), channels[:2]", "len(shape)", KINDS),
        Mutation("there are no large pictures",
                 '(720, 700, "noise"), (380, 1200, "noise"),',
                 '(72, 70, "noise"), (38, 120, "noise"),', f"{FAMILY}[DeepseekOcr2ImageProcessor]"),
        Mutation("every picture of a trial is of one size",
                 '(56, 112, "noise"), (37, 30, "noise"),', '(48, 64, "noise"), (48, 64, "noise"),', TRIAL),
    ),
    "wrapping.py": (
        Mutation("what is called past a class's own preprocess is served",
                 "while own is not called:", "while False:", f"{PITFALLS}::test_what_is_called_past_a_classs_own_preprocess_has_no_part_in_its_items"),
    ),
    "fingerprints/sampling.py": (
        Mutation("a sample loads an image",
                 'if getattr(image, "tile", None):', "if False:", f"{PITFALLS}::test_sampling_a_lazy_image_neither_loads_it_nor_moves_its_file"),
        Mutation("a sample moves a file",
                 "image.fp.seek(position)", "pass", f"{PITFALLS}::test_sampling_a_lazy_image_neither_loads_it_nor_moves_its_file"),
    ),
    "items/images.py": (
        Mutation("what lies in info is not counted", "sum(map(_deep_bytes, members))", "0", f"{PITFALLS}::test_what_is_inside_an_images_info_is_counted"),
    ),
    "tickets.py": (
        Mutation("only codes are cast", "output.to(dtype=self._dtype)", "output", f"{PITFALLS}::test_lists_of_numbers_are_cast_too"),
    ),
    "structure.py": (
        Mutation("counts are sizes", "if named and value > _LARGEST_COUNT", "if named"),
        Mutation("every whole number is a size", "if named and value > _LARGEST_COUNT", "if value > _LARGEST_COUNT"),
        Mutation("what lies in lists is no size", "[with_sizes(member, change, named=named) for member in value]", "value"),
    ),
    "layout/scaling.py": (
        Mutation("the caller's processor is scaled", "twin = copy.copy(processor)", "twin = processor"),
        Mutation("sizes of the call are not scaled", "fewer = with_sizes(options, _scaled)", "fewer = options"),
        Mutation("scaled down without getting faster",
                 "faster is not None and faster < seconds / 2", "faster is not None"),
        Mutation("the first run counts",
                 "    try:\n        run(processor, options)\n        started", "    try:\n        started"),
    ),
    "layout/geometry.py": (
        Mutation("real tensors are geometry",
                 "leaf.dtype.is_floating_point or leaf.element_size() == 1 or leaf.numel()", "leaf.numel()"),
        Mutation("geometry is the output's own memory", "        return leaf.clone()\n", "        return leaf\n"),
    ),
    "layout/book.py": (
        Mutation("any number of trials waits", " and self._waiting < _MOST_WAITING", "", f"{PITFALLS}::test_a_waiting_trial_keeps_no_picture"),
        Mutation("whoever draws is tried again and again",
                 "if self._suspected[structure] >= RUNS_TO_BE_SURE:", "if False:"),
        Mutation("whoever draws once is not served any more",
                 "if self._suspected[structure] >= RUNS_TO_BE_SURE:", "if True:"),
        Mutation("a trial that raises proves its structure", 'Verdict(reason=f"its trial failed: ', 'Verdict() or (f"'),
        Mutation("condemned structures are served",
                 "        for structure in structures:\n            self._verdicts[structure] = Verdict(reason=reason)",
                 "        return", VERIFICATION),
    ),
    "layout/coding.py": (
        Mutation("the table is not compared with what it is to give", "return (table if exact else None), seen", "return table, seen"),
        Mutation("0.0 equals -0.0 in a table", "bits, codes = _bits(usual).reshape(view)", "bits, codes = _bits(usual + 0).reshape(view)"),
        Mutation("values that were not seen are taken as seen", "missing = set((~seen)", "missing = set() and set((~seen)"),
        Mutation("outputs that are no table are left as they are", "        elif changed:\n            return None, []\n", ""),
        Mutation("two steps are not compared with the table",
                 "if torch.equal(_bits((codes - subtrahend).div_(divisor)), _bits(row)):", "if True:"),
    ),
    "items/codes.py": (
        Mutation("pairs are the wrong way round", "(table.repeat(1, VALUES), table.repeat_interleave(VALUES, 1))",
                 "(table.repeat_interleave(VALUES, 1), table.repeat(1, VALUES))"),
        Mutation("odd numbers are looked up in pairs", "codes.shape[3] % 2 == 0 and ", ""),
        Mutation("blocks are odd", "// channels // 2 * 2)", "// channels)"),
        Mutation("-0.0 is 0.0", 'return array.view(f"u{array.itemsize}")', "return array", PITFALLS),
        Mutation("values are not looked at", "if once.dtype != codes.dtype and not", "if False and not"),
        Mutation("repeated frames are not looked at", "if not all(np.array_equal(", "if not all(True or np.array_equal("),
        Mutation("a table is that of the first channel", "row.index_select(0, index).view(codes", "self.table[0].index_select(0, index).view(codes"),
        Mutation("frames are not repeated", "                out[place][:, :, 1:] = once[place]\n", "                pass\n"),
        Mutation("codes are written as if their place were contiguous", "        if tensor.is_contiguous():", "        if True:"),
    ),
    "budget.py": (
        Mutation("nothing ever passes", "self.exhausted = self._left <= 0 and", "self.exhausted = False and", "tests/test_budget.py"),
        Mutation("repeats are not noticed", "return not repeated or", "return True or", "tests/test_budget.py"),
        Mutation("repeats cost without end", " or self._left <= -_BEGINNING", "", "tests/test_budget.py"),
        Mutation("hits earn nothing", "        self._change(seconds)\n", "", "tests/test_budget.py"),
    ),
    "verification.py": (
        Mutation("strata are not verified", "        return new\n", "        return False\n"),
        Mutation("strata are shared by all structures",
                 "(structure, stratum) not in self._seen", "stratum not in [seen for _, seen in self._seen]"),
        Mutation("first misses are not verified",
                 "if missed and self._misses[structure] < _FIRST_MISSES:", "if False:"),
        Mutation("no share is verified later", "return self._outputs % self._every == 0", "return False"),
        Mutation("a rate of 0 is one in 256", "if rate is None else", "if not rate else"),
    ),
    "cache.py": (
        Mutation("the key has no scheme", "parts = (_SCHEME, ", "parts = (", SCHEME),
        Mutation("the key has no algorithm", "(_SCHEME, self.hasher.algorithm, ", "(_SCHEME, ", KEY),
        Mutation("the key has no namespace",
                 "self.hasher.algorithm, self._settings.namespace, ", "self.hasher.algorithm, ", KEY),
        Mutation("the key has no identity", "identity, fingerprint)", "fingerprint)", KEY),
        Mutation("the key has no fingerprint", "identity, fingerprint)", "identity)", KEY),
        Mutation("the key does not say how an image is handled",
                 "metadata=metadata), handling(source))", "metadata=metadata),)", KEY),
        Mutation("the key has no metadata", "self.hasher, metadata=metadata)", "self.hasher, metadata=False)", KEY),
        Mutation("what was joined is given though it differs",
                 "        return expected\n", "        return output\n", VERIFICATION),
        Mutation("a difference does not end caching", "self.trials.condemn(structures, f", "str(f", VERIFICATION),
        Mutation("what was stored before a difference stays",
                 "        self.clear()\n        self._note(self.stats.mismatch",
                 "        self._note(self.stats.mismatch", VERIFICATION),
        Mutation("an image written to meanwhile is a mismatch",
                 "if found and list(call.keys()) == list(keys):", "if found:", VERIFICATION),
        Mutation("what the plain processor refuses is given",
                 'raise Bypass("an output that the plain processor refuses") from None', "return output", VERIFICATION),
        Mutation("converted outputs are not verified",
                 " if converted else output", " if False else output", CONVERSION),
    ),
    "processing.py": (
        Mutation("autocast is in no key", "if autocast():", "if False:", f"{PITFALLS}::test_under_autocast_everything_is_plain"),
        Mutation("trials keep pictures", "[_stand_in(loaded(source)) for", "[loaded(source) for", f"{PITFALLS}::test_a_waiting_trial_keeps_no_picture"),
        Mutation("a batch draws twice",
                 "            if not self.single:  # the plain", "            if False:  # the plain", f"{PITFALLS}::test_draws_that_no_trial_saw_leave_the_generators_where_plain_does"),
        Mutation("what is done anew draws twice",
                 "if before is not None and random_states() != before:", "if False:", f"{PITFALLS}::test_draws_that_no_trial_saw_leave_the_generators_where_plain_does"),
        Mutation("items of images that changed are kept", "if self.key_of(source) != key:", "if False:", MEANWHILE),
        Mutation("items of processors that changed are kept",
                 "if self._identity_now() != self.identity:", "if False:", MEANWHILE),
        Mutation("items made with random numbers are kept",
                 "        if random_states() != before:\n", "        if False:\n", NASTY),
        Mutation("metadata is in no key",
                 "metadata=self._metadata)",
                 "metadata=False)", f"{WRAPPING}::test_a_patched_method_that_reads_metadata_has_it_in_the_key"),
        Mutation("the order within a sample is not in its key",
                 "[self.key_of(image, identity) for image in source]",
                 "sorted(self.key_of(image, identity) for image in source)",
                 f"{WRAPPING}::test_images_that_depend_on_their_sample_are_served_by_whole_samples"),
        Mutation("one trial is for all forms",
                 "description.structure(self.form)",
                 "description.structure('')",
                 f"{WRAPPING}::test_every_form_and_tensor_type_is_that_of_the_plain_call_cold_and_warm[Qwen2VLImageProcessor]"),
        Mutation("one trial is for all kinds of sources", "tuple(structure + encode(trait) for trait in kinds)", "tuple(structure for trait in kinds)", MODES),
        Mutation("kinds of images that join differently are joined",
                 "(other.layout, other.conversion) != (first.layout, first.conversion)", "False", MODES),
        Mutation("what None asks for is not looked at",
                 'kind in KINDS and getattr(twin, "return_tensors", None) is None', "kind in KINDS", CONVERSION),
        Mutation("the trial runs the caller's processor",
                 "copy.deepcopy(self._processor), self._original", "self._processor, self._original", TRIAL),
        Mutation("a stratum has no number of images",
                 "(self.images, pixels.bit_length(), ", "(pixels.bit_length(), ", VERIFICATION),
        Mutation("a stratum has no number of pixels",
                 "(self.images, pixels.bit_length(), ", "(self.images, ", VERIFICATION),
        Mutation("a stratum has no kinds of images",
                 "pixels.bit_length(), self.structures, tuple", "pixels.bit_length(), tuple", VERIFICATION),
        Mutation("a stratum has no samples", "self.structures, tuple(self.counts))", "self.structures)", VERIFICATION),
    ),
    "functions.py": (
        Mutation("the code of a function is not in its key", "(plan.identity(), _as_seen(", "(_as_seen("),
        Mutation("arguments are not in the key", "_as_seen(self._others(arguments)), ", ""),
        Mutation("the surroundings are not in the key", "surroundings(), modes())", "modes())"),
        Mutation("torch's modes are not in the key", "surroundings(), modes())", "surroundings())"),
        Mutation("the version is not in the key", "self.name, version, function", "self.name, function"),
        Mutation("the name is not in the key", '("version", self.name, version', '("version", version'),
        Mutation("bytecode beside a version is not in the key", "version, function.__code__.co_code)", "version)"),
        Mutation("the order of options is not in the key",
                 'return ("dict", [(name, _as_seen(member)) for name, member in value.items()])',
                 "return {name: _as_seen(member) for name, member in value.items()}"),
        Mutation("strides of arguments are not in the key", 'return ("array", value, handling(value))', "return value"),
        Mutation("the state of an image processor is not in the key",
                 '("image processor", described(value, {}).encoded)',
                 '("image processor", type(value).__qualname__)'),
        Mutation("metadata is in no key", "source, metadata=True)", "source, metadata=False)"),
        Mutation("outputs made with random numbers are kept",
                 "        if random_states() != before:\n", "        if False:\n"),
        Mutation("outputs of files that changed are kept",
                 "if any(self._key_now(source) != key for", "if any(False for"),
    ),
    "fingerprints/snapshot.py": (
        Mutation("equal objects are the same", "all(map(operator.is_, now.values()", "all(map(operator.eq, now.values()"),
        Mutation("equal members are the same", "all(map(operator.is_, sequence, held))", "all(map(operator.eq, sequence, held))"),
        Mutation("lengths are not compared", "len(sequence) == len(held) and", ""),
        Mutation("what lies in sequences is not looked at", "            self.add(member, (*inside, id(value)))\n", "            pass\n"),
        Mutation("sizes are fixed", "mapping = value if kind is dict else vars(value)", "mapping = dict(value)"),
    ),
    "fingerprints/identity.py": (
        Mutation("the class's code is not in the identity",
                 "return (_code_of(type(processor)), _canonical", "return ((), _canonical"),
        Mutation("options are not in the identity",
                 "_canonical(_effective(processor, options))", "_canonical(_effective(processor, {}))"),
        Mutation("the state is not in the identity",
                 '{"state": state, "options": effective}', '{"state": {}, "options": effective}'),
        Mutation("the surroundings are not in the identity",
                 "(_effective(processor, options)), surroundings())", "(_effective(processor, options)), ())"),
        Mutation("versions are not in the identity",
                 "return (*versions, torch.get_default_dtype()", "return (torch.get_default_dtype()"),
        Mutation("the default dtype is not in the identity", "torch.get_default_dtype(), str", "str"),
        Mutation("the default device is not in the identity", "str(torch.get_default_device()), ", ""),
        Mutation("the number of threads is not in the identity", ", torch.get_num_threads())", ")"),
        Mutation("an option that is None is the attribute",
                 "**{**unasked, **options}", "**{**unasked, **{n: v for n, v in options.items() if v is not None}}"),
        Mutation("defaults of a signature are not in the identity", " for name in names} | own\n", " for name in names}\n"),
        Mutation("an attribute beside a default of the signature is not in the identity",
                 "(name not in options and name not in own) or", "name not in options or", CONVERSION),
        Mutation("what foreign code is given is not in the identity",
                 'return described | {"given": dict(options)} if has_foreign_code(cls) else described',
                 "return described"),
        Mutation("attributes behind options are not in the identity",
                 "        if (name not in options and name not in own) or _alike(state.get(name), effective.get(name)):\n",
                 "        if True:\n",
                 f"{WRAPPING}::test_an_attribute_that_is_read_behind_a_given_option_is_in_the_key"),
        Mutation("slots are not in the identity",
                 "not in _INERT} | slots_of(processor)",
                 "not in _INERT}", f"{WRAPPING}::test_what_is_kept_in_slots_is_copied_and_in_the_key"),
        Mutation("small and large numbers are parts of a structure",
                 "encode((with_sizes(self._parts, lambda _: _Size.ANY), form))", "encode((self._parts, form))",
                 f"{WRAPPING}::test_per_image_pixel_limits_are_in_the_key_and_start_no_trial_each"),
        Mutation("attributes are not compared", "same_objects(vars(processor), self._attributes)", "True"),
        Mutation("slots are not compared",
                 "and all(getattr(processor, name, _UNSET) is value for name, value in self._slots.items())", ""),
        Mutation("what changes in place is not seen", "            and self._inside.unchanged()\n", ""),
        Mutation("what changed meanwhile is remembered", "            if self.unchanged(processor):\n", "            if True:\n"),
        Mutation("options are not part of what is remembered", "(encode(options), _code_of", "(_code_of"),
        Mutation("methods put on a wrapped class are not seen",
                 "if cls is not plain and vars(cls).keys() - _OWN_MEMBERS:",
                 "if False:", f"{WRAPPING}::test_methods_put_on_the_class_of_a_wrapped_processor_are_seen"),
        Mutation("grad mode is no mode", "(torch.is_grad_enabled(), autocast())", "(autocast(),)", FUNCTIONS),
        Mutation("autocast is no mode", "(torch.is_grad_enabled(), autocast())", "(torch.is_grad_enabled(),)", FUNCTIONS),
        Mutation("autocast has no dtype", ' and torch.get_autocast_dtype("cpu")', "", FUNCTIONS),
    ),
    "fingerprints/code.py": (
        Mutation("bytecode is not in the identity", "describe_bytecode(code), tuple", "tuple"),
        Mutation("defaults are not in the identity",
                 "(*(defaults or ()), *(keyword or {}).values())", "(keyword or {}).values()", FUNCTIONS),
        Mutation("keyword defaults are not in the identity",
                 "(*(defaults or ()), *(keyword or {}).values())", "(defaults or ())", FUNCTIONS),
        Mutation("closures are not in the identity",
                 "for n, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)",
                 "for n, cell in ()", FUNCTIONS),
        Mutation("globals are not in the identity",
                 "for n in sorted(set(global_names(code)))", "for n in ()", FUNCTIONS),
        Mutation("attributes of functions are not in the identity",
                 "        described += self._attributes(function)\n", "", FUNCTIONS),
        Mutation("imports are not in the identity",
                 'for n in sorted(set(imports(code, function.__module__ or "")))', "for n in ()"),
        Mutation("members of classes are not in the identity", "described += self._members(base)", "pass", FUNCTIONS),
        Mutation("versions of libraries are not in the identity",
                 "value.__module__, value.__qualname__, version)", "value.__module__, value.__qualname__)"),
        Mutation("versions of modules are not in the identity",
                 '("module", module.__name__, version)', '("module", module.__name__)'),
        Mutation("values are encoded once",
                 "        self.live.append(lambda: encode(value))\n",
                 "        self.live.append(functools.partial(bytes, encode(value)))\n"),
        Mutation("bindings are looked at once", "if not all(watch() for watch in watches):", "if False:"),
    ),
    "fingerprints/bytecode.py": (
        Mutation("constants are not in the identity",
                 "code.co_exceptiontable, constants, names", "code.co_exceptiontable, names", CODE),
        Mutation("names are not in the identity", "constants, names, arguments)", "constants, arguments)", CODE),
    ),
    "fingerprints/sources.py": (
        Mutation("a mode is not in the fingerprint", '_header("image", image.mode, ', '_header("image", '),
        Mutation("a size is not in the fingerprint", "image.mode, image.size, byte_order", "image.mode, byte_order"),
        Mutation("a palette is not in the fingerprint",
                 "byte_order, palette, transparency", "byte_order, transparency"),
        Mutation("a transparency is not in the fingerprint", "palette, transparency, *extra", "palette, *extra"),
        Mutation("metadata is not in the fingerprint", "palette, transparency, *extra", "palette, transparency"),
        Mutation("a dtype is not in the fingerprint of an array", '"array", array.dtype.str, ', '"array", '),
        Mutation("a shape is not in the fingerprint of an array",
                 "array.dtype.str, array.shape, ", "array.dtype.str, "),
        Mutation("negative strides are not in the fingerprint", "array.shape, backwards)", "array.shape)"),
        Mutation("a dtype is not in the fingerprint of a tensor", '"tensor", str(tensor.dtype), ', '"tensor", '),
        Mutation("a shape is not in the fingerprint of a tensor",
                 "str(tensor.dtype), tuple(tensor.shape), ", "str(tensor.dtype), "),
        Mutation("arrays and tensors share fingerprints",
                 '_header("tensor", str(tensor.dtype), tuple(tensor.shape), *extra)',
                 '_header("array", getattr(tensor.numpy(), "dtype").str, tuple(tensor.shape), False)'),
        Mutation("how bytes decode is not in the fingerprint",
                 "_header(kind, *_decoding(), handed_over", "_header(kind, handed_over"),
        Mutation("strides are not handled",
                 "return () if source.flags.c_contiguous else source.strides", "return ()", KEY),
        Mutation("strides of tensors are not handled", "() if source.is_contiguous() else source.stride()", "()", KEY),
        Mutation("autograd is not handled", "(*strides, source.requires_grad)", "strides", KEY),
    ),
    "fingerprints/metadata.py": (
        Mutation("EXIF is not in the metadata", "None if exif is None else dict(exif)", "None", SOURCES),
        Mutation("EXIF's directories are not in the metadata", '"directories": directories,', "", SOURCES),
        Mutation("info is not in the metadata", '"info": dict(image.info),', "", SOURCES),
        Mutation("attributes are not in the metadata", '"attributes": _attributes(image),', "", SOURCES),
    ),
    "fingerprints/pixels.py": (
        Mutation("the padding of pixels is hashed", "    if mode not in _PADDED:\n", "    if True:\n", SOURCES),
    ),
    "fingerprints/encoding.py": (
        Mutation("texts have no length", '_COUNT(b"s", len(raw)) + raw', 'b"s" + raw'),
        Mutation("sequences have no length",
                 "_COUNT(tag or _SEQUENCES[type(value)], len(value))", "_COUNT(tag or _SEQUENCES[type(value)], 0)"),
        Mutation("mappings have no length",
                 "_COUNT(_MAPPINGS[type(value)], len(by_key))", "_COUNT(_MAPPINGS[type(value)], 0)"),
        Mutation("lists are tuples", '{list: b"[", tuple: b"("}', '{list: b"(", tuple: b"("}'),
        Mutation("bytearrays are bytes", 'b"b" if type(value) is bytes else b"B"', 'b"b"'),
        Mutation("truth values are numbers",
                 '    encoder.out.append(b"T" if value else b"F")', "    _put_int(encoder, int(value))"),
        Mutation("fractions without a fraction are whole numbers",
                 'encoder.out.append(_FLOAT(b"f", value))',
                 'encoder.put(int(value)) if value.is_integer() else encoder.out.append(_FLOAT(b"f", value))'),
        Mutation("the order of dicts shows", "for key in sorted(by_key):", "for key in by_key:"),
        Mutation("the order of sets shows",
                 "sorted(encoder.alone(member) for member in value)", "(encoder.alone(member) for member in value)"),
        Mutation("enums have no class", "for word in (cls.__module__, cls.__qualname__):", "for word in ():"),
        Mutation("arrays have no shape", "    _put_sequence(encoder, array.shape)\n", ""),
        Mutation("tensors that require grad are like others", 'b"X" if tensor.requires_grad else b"w"', 'b"w"'),
    ),
    "fingerprints/hashers.py": (
        Mutation("digests have no key",
                 'xxhash.xxh3_128(seed=int.from_bytes(self.key, "little"))', "xxhash.xxh3_128()"),
        Mutation("namespaces share a secret",
                 'b"mmcache namespace 1 " + namespace.encode("utf-8", "surrogatepass")', 'b"mmcache namespace 1 "'),
    ),
}
# fmt: on


def main() -> int:
    """Try all mutations, or those of the numbers given; return 1 if one is not found by a test."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="the numbers of the mutations to try")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at the same time")
    given = parser.parse_args()
    rows = [row for row in numbered() if given.only is None or row.number in given.only]
    with tempfile.TemporaryDirectory(prefix="mmcache-mutations-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        unmutated = Path(folder)
        copy_of(CHECKOUT, unmutated)
        check_without_mutations(unmutated, rows)
        found = [told(row, by) for row, by in zip(rows, pool.map(partial(tried, unmutated), rows), strict=True)]
    print(f"{len(found)} mutations, of which tests found {sum(found)}")
    return 0 if all(found) else 1


class Row(NamedTuple):
    """A mutation in its place in the table."""

    number: int
    module: str
    mutation: Mutation
    tests: str


def numbered() -> Iterator[Row]:
    """Yield the rows of the table, from 1."""
    rows = ((module, mutation) for module, mutations in MUTATIONS.items() for mutation in mutations)
    for number, (module, mutation) in enumerate(rows, 1):
        folder, _, name = module.rpartition("/")
        yield Row(number, module, mutation, mutation.tests or str(Path("tests", folder, f"test_{name}")))


def copy_of(source: Path, folder: Path) -> None:
    """Copy what the tests need, with its bytecode: copies are as old as what they are copies of."""
    for name in _DIRECTORIES:
        shutil.copytree(source / name, folder / name)
    shutil.copy(source / "pyproject.toml", folder)


def check_without_mutations(folder: Path, rows: Iterable[Row]) -> None:
    """Make sure that the tests import the copy, and that they pass as it is: one that fails anyway finds nothing."""
    imported = run(folder, "-c", "import mmcache; print(mmcache.__file__)").stdout.strip()
    assert Path(imported) == folder / "mmcache" / "__init__.py", f"the tests would import {imported}"
    ended = pytest(folder, *dict.fromkeys(row.tests for row in rows))
    assert ended.returncode == 0, f"without a mutation:\n{ended.stdout}{ended.stderr}"


class Judgement(NamedTuple):
    """Whether a mutation was found, and by which test, or why not."""

    found: bool
    why: str


def tried(unmutated: Path, row: Row) -> Judgement:
    """Run a mutation's tests on a copy that has it."""
    with tempfile.TemporaryDirectory(prefix="mmcache-mutation-") as folder:
        copy_of(unmutated, Path(folder))
        module = Path(folder, "mmcache", row.module)
        text = module.read_text()
        if (times := text.count(row.mutation.text)) != 1:
            return Judgement(False, f"STALE: its text stands there {times} times")
        module.write_text(text.replace(row.mutation.text, row.mutation.instead))
        try:
            return judged(pytest(Path(folder), row.tests), row.tests)
        except subprocess.TimeoutExpired:
            return Judgement(False, f"HANGS in {row.tests}")


def judged(ended: "subprocess.CompletedProcess[str]", tests: str) -> Judgement:
    """Judge by how pytest ended; tests that could not run at all found nothing."""
    failed = _FAILED.search(ended.stdout)
    if ended.returncode == 1 and failed is not None:
        return Judgement(True, failed[1])
    return Judgement(False, f"SURVIVED {tests}" if ended.returncode == 0 else f"NOT RUN:\n{ended.stdout}{ended.stderr}")


def pytest(folder: Path, *selections: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest up to the first failure, with the same examples of properties each time."""
    options = ("-x", "-q", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0")
    return run(folder, "-m", "pytest", *options, *selections)


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a folder, whose packages come before the installed ones."""
    own = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}  # one thread, since there are several processes
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, **own}, capture_output=True, text=True,
        timeout=_LONGEST_SECONDS, check=False,
    )  # fmt: skip


def told(row: Row, judgement: Judgement) -> bool:
    """Print a row with its judgement; return whether it was found."""
    by = "found by " if judgement.found else ""
    print(f"{row.number:3}  {row.module}: {row.mutation.what}\n     {by}{judgement.why}", flush=True)
    return judgement.found


if __name__ == "__main__":
    sys.exit(main())
