"""Two stages: an image of a request is preprocessed once, and its tensors are those of the plain processor."""

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import mmcache
from mmcache.items.codes import Expansion
from mmcache.layout.compare import difference
from tests.pictures import counted, picture

LIMITS = {"shortest_edge": 3136, "longest_edge": 30000}
A, B, WIDE = picture(1, 160, 120), picture(2, 160, 120), picture(3, 400, 120)
QWEN = transformers.Qwen2VLImageProcessor
MODES = ("eager", "now", "lazy")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[mmcache.Cache]:
    monkeypatch.setattr("mmcache.stages.PATIENCE_SECONDS", 120.0)
    with mmcache.Cache("256MiB", name="stages", verify_rate=0) as cache:
        yield cache


@pytest.fixture(params=MODES)
def stages(request: pytest.FixtureRequest, cache: mmcache.Cache) -> Iterator[mmcache.Stages]:
    with mmcache.Stages(QWEN(), cache=cache, pixels=request.param) as stages:
        stages.execute([stages.add(picture(99), size=LIMITS)])  # the trial
        yield stages


def plain(images: Any, **options: Any) -> Any:
    return QWEN()(images, return_tensors="pt", **{"size": LIMITS, **options})


def same(expected: Any, found: Any) -> None:
    assert difference(expected, found) == ""


def test_an_image_of_a_request_is_preprocessed_once(stages: mmcache.Stages, cache: mmcache.Cache) -> None:
    with counted(QWEN) as runs:
        ticket = stages.add(A, size=LIMITS)
        assert ticket.geometry["image_grid_thw"] == plain(A)["image_grid_thw"].tolist()
        assert ticket.geometry["pixel_values"] == tuple(plain(A)["pixel_values"].shape)
        runs.clear()
        cache.clear()
        ticket = stages.add(A, size=LIMITS)
        output = stages.execute([ticket])
        assert runs.images == 1
        for _ in range(3):  # later turns of the chat
            same(output, stages.execute([stages.add(A.copy(), size=LIMITS)]))
        assert runs.images == 1
    same(plain([A]), output)


def test_tickets_are_redeemed_in_any_order_any_number_of_times(stages: mmcache.Stages) -> None:
    tickets = [stages.add(image, size=LIMITS) for image in (A, B, WIDE, A)]
    for order in ([0, 1, 2, 3], [3, 1], [2, 0, 2], [1]):
        images = [(A, B, WIDE, A)[i] for i in order]
        same(plain(images), stages.execute([tickets[i] for i in order]))


def test_images_with_different_limits_join_to_one_batch(stages: mmcache.Stages) -> None:
    limits = [{"shortest_edge": 3136, "longest_edge": most} for most in (15000, 25000, 40000)]
    tickets = [stages.add(image, size=size) for image, size in zip((A, B, WIDE), limits, strict=True)]
    parts = [plain(image, size=size) for image, size in zip((A, B, WIDE), limits, strict=True)]
    output = stages.execute(tickets)
    for name in ("pixel_values", "image_grid_thw"):
        assert output[name].numpy().tobytes() == torch.cat([part[name] for part in parts]).numpy().tobytes()


def test_new_limits_start_no_trial(stages: mmcache.Stages, cache: mmcache.Cache) -> None:
    trials = len(cache.trials._verdicts)
    for most in range(10000, 40000, 3000):
        stages.add(A, size={"shortest_edge": 3136, "longest_edge": most})
    assert len(cache.trials._verdicts) == trials


def test_an_eager_add_of_a_known_size_returns_before_its_pixels_are_there(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    with mmcache.Stages(QWEN(), cache=cache, pixels="eager") as stages:
        stages.execute([stages.add(picture(98, 160, 120), size=LIMITS)])
        original = QWEN._preprocess

        def slow(self: Any, *args: Any, **options: Any) -> Any:
            assert go_on.wait(60)
            return original(self, *args, **options)

        slow.__mmcache_original__ = original  # type: ignore[attr-defined]
        monkeypatch.setattr(QWEN, "_preprocess", slow)
        ticket = stages.add(A, size=LIMITS)  # returns although the processor is held
        assert ticket.geometry["image_grid_thw"][0][0] == 1
        hit = stages.add(picture(98, 160, 120), size=LIMITS)  # hits never queue behind misses
        same(plain_of(original, picture(98, 160, 120)), stages.execute([hit]))
        go_on.set()
        same(plain([A]), stages.execute([ticket]))
    assert cache.cache_info().errors == 0


def plain_of(original: Any, image: Any) -> Any:
    class Plain(QWEN):
        _preprocess = original

    return Plain()([image], size=LIMITS, return_tensors="pt")


def test_a_lazy_add_processes_nothing_until_it_is_executed(cache: mmcache.Cache) -> None:
    with mmcache.Stages(QWEN(), cache=cache, pixels="lazy") as stages:
        stages.add(picture(97, 160, 120), size=LIMITS)
        with counted(QWEN) as runs:
            tickets = [stages.add(image, size=LIMITS) for image in (A, B)]
            assert runs.images == 0
            same(plain([A, B]), stages.execute(tickets))
            assert runs.images == 2 + 2  # two of them plain


@pytest.mark.parametrize("pixels", ["eager", "lazy"])
def test_a_source_changed_before_it_is_processed_is_an_error_and_nothing_is_stored(
    pixels: Any, cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mmcache.Stages(QWEN(), cache=cache, pixels=pixels) as stages:
        stages.add(picture(96, 160, 120), size=LIMITS)
        array = np.asarray(A).copy()
        stages.add(np.asarray(B).copy(), size=LIMITS)
        monkeypatch.setattr(stages, "_start", lambda tickets: None)  # as if the pool had not come to it
        ticket = stages.add(array, size=LIMITS)
        array[:50] = 0
        items = cache.cache_info().items
        with pytest.raises(mmcache.SourceChanged):
            stages.execute([ticket])
        assert cache.cache_info().items == items
        array[:] = np.asarray(A)
        same(plain([np.asarray(A).copy()]), stages.execute([ticket]))


def test_a_source_changed_while_it_is_processed_is_an_error_and_nothing_is_stored(
    cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.asarray(A).copy()
    with mmcache.Stages(QWEN(), cache=cache, pixels="lazy") as stages:
        stages.add(np.asarray(B).copy(), size=LIMITS)
        ticket = stages.add(array, size=LIMITS)
        original = QWEN._preprocess

        def changing(self: Any, *args: Any, **options: Any) -> Any:
            array[0, 0, 0] ^= 1
            return original(self, *args, **options)

        changing.__mmcache_original__ = original  # type: ignore[attr-defined]
        items = cache.cache_info().items
        with monkeypatch.context() as patched:
            patched.setattr(QWEN, "_preprocess", changing)
            with pytest.raises(mmcache.SourceChanged):
                stages.execute([ticket])
        assert cache.cache_info().items == items


def test_a_ticket_pins_its_item_until_it_is_executed_released_or_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcache.stages.PATIENCE_SECONDS", 120.0)
    with (
        mmcache.Cache("512KiB", verify_rate=0) as small,
        mmcache.Stages(QWEN(), cache=small, pixels="now") as stages,
    ):
        ticket = stages.add(A, size=LIMITS)
        for seed in range(50, 70):
            stages.add(picture(seed, 160, 120), size=LIMITS).release()
        assert small.cache_info().evictions > 0
        assert small.cache_info().pinned > 0
        with counted(QWEN) as runs:
            stages.execute([ticket])
            assert runs.images == 0
        assert small.cache_info().pinned == 0
        for seed in range(50, 70):
            stages.add(picture(seed, 160, 120), size=LIMITS).release()
        with counted(QWEN) as runs:
            same(plain([A]), stages.execute([ticket]))  # evicted by now: computed from its source
            assert runs.images == 2


@pytest.mark.parametrize("pixels", MODES)
def test_a_changed_source_is_noticed_even_where_the_plain_processor_has_to_do_it(
    pixels: Any, cache: mmcache.Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mmcache.Stages(QWEN(), cache=cache, pixels=pixels) as stages:
        stages.add(np.asarray(B).copy(), size=LIMITS)
        array = np.asarray(A).copy()
        ticket = stages.add(array, size=LIMITS)
        cache.settle()
        stages.close()
        cache.close()
        array[:50] = 0
        with pytest.raises(mmcache.SourceChanged):
            stages.execute([ticket])
        array[:] = np.asarray(A)
        same(plain([np.asarray(A).copy()]), stages.execute([ticket]))


def test_a_processor_that_changed_since_add_is_executed_as_it_is_now(cache: mmcache.Cache) -> None:
    processor = QWEN()
    with mmcache.Stages(processor, cache=cache, pixels="lazy") as stages:
        stages.add(B, size=LIMITS)
        ticket = stages.add(A, size=LIMITS)
        stages._image_processor.do_normalize = False
        processor.do_normalize = False
        same(processor([A], size=LIMITS, return_tensors="pt"), stages.execute([ticket]))


def test_an_item_made_with_another_number_of_threads_is_not_kept(cache: mmcache.Cache) -> None:
    threads = torch.get_num_threads()
    with mmcache.Stages(QWEN(), cache=cache, pixels="lazy") as stages:
        stages.add(B, size=LIMITS)
        part = stages.call([A], {"size": LIMITS})
        (key,) = part.keys()
        torch.set_num_threads(threads + 1)
        try:
            from mmcache.calls import Bypass
            from mmcache.processing import ImageCall

            with pytest.raises(Bypass, match="surroundings"):
                cache.items(ImageCall(part, 0, key))
        finally:
            torch.set_num_threads(threads)
        assert key not in cache.memory


def test_what_was_learned_of_a_size_is_forgotten_with_clear(cache: mmcache.Cache) -> None:
    with mmcache.Stages(QWEN(), cache=cache, pixels="lazy") as stages:
        stages.add(A, size=LIMITS)
        cache.clear()
        with counted(QWEN) as runs:
            stages.add(B, size=LIMITS)
            assert runs.images == 1


def test_outputs_that_are_no_mapping_have_tickets_too(cache: mmcache.Cache) -> None:
    class Bare(transformers.CLIPImageProcessorPil):
        def preprocess(self, images: Any, **options: Any) -> Any:
            return super().preprocess(images, **options)["pixel_values"]

    with mmcache.Stages(Bare(), cache=cache) as stages:
        tickets = [stages.add(image) for image in (A, B)]
        assert tickets[0].geometry == {"": (1, 3, 224, 224)}
        same(Bare()([A, B], return_tensors="pt"), stages.execute(tickets))


def test_a_processor_with_code_of_its_own_is_executed_plainly_after_close(cache: mmcache.Cache) -> None:
    class Own(transformers.CLIPImageProcessorPil):
        def rescale(self, image: Any, *args: Any, **options: Any) -> Any:
            return super().rescale(image, *args, **options) * 2

    with mmcache.Stages(Own(), cache=cache) as stages:
        tickets = [stages.add(image) for image in (A, B)]
        cache.close()
        same(Own()([A, B], return_tensors="pt"), stages.execute(tickets))


def test_dropped_tickets_leave_nothing_behind(stages: mmcache.Stages, cache: mmcache.Cache) -> None:
    tickets = [stages.add(picture(seed, 160, 120), size=LIMITS) for seed in range(200, 220)]
    assert cache.memory.info().held >= 20 * 160 * 120 * 3
    del tickets
    stages.close()
    gc.collect()
    info = cache.memory.info()
    assert (info.pinned, info.held) == (0, 0)


def test_a_ticket_travels_with_its_source_and_is_redeemed_elsewhere(stages: mmcache.Stages, tmp_path: Any) -> None:
    ticket = stages.add(A, size=LIMITS)
    expected = stages.execute([ticket])
    here = pickle.loads(pickle.dumps(ticket))
    same(expected, stages.execute([here]))
    (tmp_path / "ticket").write_bytes(pickle.dumps(ticket))
    script = """
import pickle, sys, hashlib, transformers, mmcache
stages = mmcache.Stages(transformers.Qwen2VLImageProcessor())
output = stages.execute([pickle.load(open(sys.argv[1], "rb"))])
print(hashlib.sha256(output["pixel_values"].numpy().tobytes()).hexdigest(), output["image_grid_thw"].tolist())
"""
    import hashlib

    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "ticket")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    digest = hashlib.sha256(expected["pixel_values"].numpy().tobytes()).hexdigest()
    assert found.stdout.strip() == f"{digest} {expected['image_grid_thw'].tolist()}"


def test_a_ticket_without_its_source_is_small_and_may_find_its_item_gone(cache: mmcache.Cache) -> None:
    with mmcache.Stages(QWEN(), cache=cache, pixels="now", carry_source=False) as stages:
        ticket = stages.add(A, size=LIMITS)
        sent = pickle.dumps(ticket)
        assert len(sent) < 1024
        arrived = pickle.loads(sent)
        same(plain([A]), stages.execute([arrived]))
        same(plain([A, A]), stages.execute([arrived, ticket]))
        cache.clear()
        with pytest.raises(mmcache.ItemGone):
            stages.execute([arrived])
        same(plain([A]), stages.execute([ticket]))  # which still has its source, here


def test_after_clear_a_ticket_is_computed_anew(stages: mmcache.Stages, cache: mmcache.Cache) -> None:
    ticket = stages.add(A, size=LIMITS)
    stages.execute([ticket])
    cache.clear()
    with counted(QWEN) as runs:
        same(plain([A]), stages.execute([ticket]))
        assert runs.images == 2


def test_dtype_and_device_are_as_with_to(stages: mmcache.Stages) -> None:
    output = stages.execute([stages.add(A, size=LIMITS)], device="cpu", dtype=torch.bfloat16)
    expected = plain([A]).to(dtype=torch.bfloat16)
    same(dict(expected), dict(output))
    assert output["image_grid_thw"].dtype == torch.int64


@pytest.mark.parametrize("images", [[A], [A, B], [A, B, A]], ids=len)
def test_on_another_device_everything_is_as_with_to(images: list[Any], stages: mmcache.Stages) -> None:
    """Every machine has a device without memory, on which codes are expanded as on any other."""
    written: list[torch.Tensor] = []
    write_far = Expansion.write_far

    def watched(self: Expansion, codes: Any, out: Any) -> None:
        written.append(codes)
        write_far(self, codes, out)

    with mock.patch.object(Expansion, "write_far", watched):
        for _ in range(2):
            output = stages.execute([stages.add(image, size=LIMITS) for image in images], device="meta")
            expected = plain(images).to(device="meta")
            same(dict(expected), dict(output))
    assert {codes.dtype for codes in written} == {torch.uint8}
    assert len(written) == 2 * len(images)


def test_outputs_can_be_written_to(stages: mmcache.Stages) -> None:
    ticket = stages.add(A, size=LIMITS)
    for _ in range(3):
        output = stages.execute([ticket])
        same(plain([A]), output)
        output["pixel_values"].zero_()
        output["image_grid_thw"].zero_()


def test_the_processors_error_is_raised_by_add_and_nothing_stays(stages: mmcache.Stages, cache: mmcache.Cache) -> None:
    narrow = picture(5, 2010, 10)
    items = cache.cache_info().items
    for _ in range(2):
        with pytest.raises(ValueError, match="aspect ratio"):
            stages.add(narrow, size=LIMITS)
    with pytest.raises(TypeError):
        stages.add(b"no image")
    assert cache.cache_info().items == items
    assert cache.memory.info().pinned == 0


def test_images_that_the_trial_does_not_serve_are_processed_plainly(cache: mmcache.Cache) -> None:
    class Noisy(transformers.CLIPImageProcessor):
        def _preprocess(self, images: Any, *args: Any, **options: Any) -> Any:
            output = super()._preprocess(images, *args, **options)
            output["pixel_values"] = output["pixel_values"] + torch.rand(1)
            return output

    stages = mmcache.Stages(Noisy(), cache=cache)
    tickets = [stages.add(A), stages.add(B)]
    assert all(ticket.key is None for ticket in tickets)
    assert tickets[0].geometry["pixel_values"] == (1, 3, 224, 224)
    torch.manual_seed(1)
    expected = Noisy()([A, B], return_tensors="pt")
    torch.manual_seed(1)
    same(expected, stages.execute(tickets))
    assert cache.cache_info().items == 0
    with pytest.raises(mmcache.NotJoinable):
        stages.execute([tickets[0], stages.add(B, do_normalize=False)])


def test_the_async_twins_give_the_same_without_blocking_the_loop(stages: mmcache.Stages) -> None:
    async def main() -> tuple[Any, Any]:
        tickets = await asyncio.gather(*[stages.aadd(image, size=LIMITS) for image in (A, B, A, WIDE)])
        return await asyncio.gather(stages.aexecute(tickets), stages.aexecute(tickets[:1]))

    batch, single = asyncio.run(main())
    same(plain([A, B, A, WIDE]), batch)
    same(plain([A]), single)


@pytest.mark.parametrize("wrong", [[], [None], ["ticket"], [[1]]])
def test_what_is_no_ticket_is_refused(wrong: Any, stages: mmcache.Stages) -> None:
    with pytest.raises(mmcache.BadArgument, match="one or more tickets"):
        stages.execute(wrong)


@pytest.mark.parametrize("options", [{"pixels": "soon"}, {"workers": 0}, {"workers": "2"}])
def test_wrong_settings_are_refused(options: Any) -> None:
    with pytest.raises(mmcache.BadArgument):
        mmcache.Stages(QWEN(), **options)


def test_an_image_processor_takes_no_text(stages: mmcache.Stages) -> None:
    with pytest.raises(mmcache.BadArgument, match="with a tokenizer"):
        stages.add_request("text", [A])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_stages_work_in_a_forked_child(stages: mmcache.Stages) -> None:
    expected = plain([A, B])
    stages.execute([stages.add(A, size=LIMITS)])
    torch.set_num_threads(1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            tickets = [stages.add(image, size=LIMITS) for image in (A, B)]
            status = int(bool(difference(expected, stages.execute(tickets))))
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestRequests:
    """With a full Processor: token ids as the processor gives them, and where the images are."""

    TEXT = "<|vision_start|><|image_pad|><|vision_end|>What is in the picture?"

    @pytest.fixture(params=MODES)
    def full(self, request: pytest.FixtureRequest, cache: mmcache.Cache, tiny_qwen2_vl: Any) -> Iterator[Any]:
        processor, _ = tiny_qwen2_vl
        with mmcache.Stages(processor, cache=cache, pixels=request.param) as stages:
            yield stages, processor

    def check(self, full: Any, text: Any, images: Any, **options: Any) -> mmcache.Request:
        stages, processor = full
        expected = processor(text=text, images=images, return_tensors="pt", **options)
        request: mmcache.Request = stages.add_request(text, images, **options)
        output = {**request.inputs, **stages.execute(request.tickets)}
        assert set(output) == set(expected)
        same(dict(expected), {name: output[name] for name in expected})
        assert request.placeholders is not None
        ids = request.inputs["input_ids"]
        for placeholder, ticket in zip(request.placeholders, request.tickets, strict=True):
            places = ids[placeholder.sample, placeholder.offset : placeholder.offset + placeholder.length]
            assert set(places.tolist()) == {processor.image_token_id}
            assert placeholder.num_tokens == ticket.num_tokens == len(places)
        assert int((ids == processor.image_token_id).sum()) == sum(t.num_tokens or 0 for t in request.tickets)
        return request

    def test_one_image(self, full: Any) -> None:
        self.check(full, self.TEXT, [A], size=LIMITS)
        self.check(full, self.TEXT, A)

    def test_several_images_of_unequal_sizes_and_several_texts(self, full: Any) -> None:
        self.check(full, self.TEXT + self.TEXT, [A, WIDE], size=LIMITS)
        self.check(full, [self.TEXT, self.TEXT + self.TEXT], [A, WIDE, B], padding=True)
        self.check(full, [self.TEXT, self.TEXT + self.TEXT], [[WIDE], [B, A]], padding=True, size=LIMITS)

    def test_text_alone_has_no_tickets(self, full: Any) -> None:
        stages, processor = full
        request = stages.add_request("no picture")
        same(dict(processor(text="no picture", return_tensors="pt")), dict(request.inputs))
        assert (request.tickets, request.placeholders) == ([], [])

    def test_each_image_is_processed_once_over_add_and_execute(self, full: Any) -> None:
        stages, processor = full
        self.check(full, self.TEXT, [picture(300, 160, 120)], size=LIMITS)
        with counted(type(processor.image_processor)) as runs:
            request = stages.add_request(self.TEXT, [picture(301, 160, 120)], size=LIMITS)
            stages.execute(request.tickets)
            stages.execute(stages.add_request(self.TEXT, [picture(301, 160, 120)], size=LIMITS).tickets)
            assert runs.images == 1

    def test_add_counts_the_tokens_of_one_image(self, full: Any) -> None:
        stages, processor = full
        ticket = stages.add(A, size=LIMITS)
        merged = plain(A)["image_grid_thw"].prod().item() // processor.image_processor.merge_size**2
        assert ticket.num_tokens == merged

    def test_an_installation_leaves_the_stages_alone(self, full: Any) -> None:
        stages, _ = full
        with mmcache.Cache("64MiB") as other, mmcache.install(other) as installation:
            patched = len(installation._patched)
            for _ in range(3):
                request = self.check(full, self.TEXT, [A], size=LIMITS)
                assert len(request.tickets) == 1
                assert stages.add(A, size=LIMITS).num_tokens
            assert len(installation._patched) == patched

    def test_a_wrong_number_of_images_raises_what_the_processor_raises(self, full: Any) -> None:
        stages, processor = full
        with pytest.raises(ValueError, match=r".") as expected:
            processor(text=self.TEXT, images=[A, B])
        with pytest.raises(ValueError, match=r".") as found:
            stages.add_request(self.TEXT, [A, B])
        assert str(found.value) == str(expected.value)

    def test_the_async_twin(self, full: Any) -> None:
        stages, processor = full
        request = asyncio.run(stages.aadd_request(self.TEXT, [A], size=LIMITS))
        same(
            processor(text=self.TEXT, images=[A], size=LIMITS, return_tensors="pt")["input_ids"],
            request.inputs["input_ids"],
        )


@pytest.mark.parametrize(
    ("name", "options"),
    [("LlavaNextImageProcessor", {}), ("Gemma3ImageProcessor", {}), ("CLIPImageProcessorPil", {}),
     ("Idefics3ImageProcessor", {"size": {"longest_edge": 728}})],
)  # fmt: skip
def test_other_families_join_as_their_plain_batch(name: str, options: Any, cache: mmcache.Cache) -> None:
    processor = getattr(transformers, name)()
    images = [A, WIDE, picture(8, 300, 700)]
    with mmcache.Stages(processor, cache=cache) as stages:
        tickets = [stages.add(image, **options) for image in images]
        same(processor(images, return_tensors="pt", **options), stages.execute(tickets))
        same(processor(images[:1], return_tensors="pt", **options), stages.execute(tickets[:1]))
    assert cache.cache_info().errors == 0
    assert cache.cache_info().bypassed == 0


def test_images_opened_from_files_leave_no_descriptor_open(stages: mmcache.Stages, tmp_path: Any) -> None:
    for number in range(5):
        picture(400 + number, 160, 120).save(tmp_path / f"{number}.png")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        with Image.open(tmp_path / f"{number}.png") as image:
            stages.execute([stages.add(image, size=LIMITS)])
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_image_means_one(stages: mmcache.Stages) -> None:
    for several in ([A, B], [], (A,)):
        with pytest.raises(mmcache.BadArgument, match="one image, not a list"):
            stages.add(several)


def test_a_single_ticket_and_tickets_of_other_stages_are_refused(stages: mmcache.Stages, cache: mmcache.Cache) -> None:
    ticket = stages.add(A, size=LIMITS)
    with pytest.raises(mmcache.BadArgument, match="a list of one or more"):
        stages.execute(ticket)  # type: ignore[arg-type]
    with mmcache.Stages(transformers.CLIPImageProcessor(), cache=cache) as other:
        with pytest.raises(mmcache.BadArgument, match="Qwen2VLImageProcessor"):
            other.execute([ticket])
        assert "CLIPImageProcessor" in repr(other)


def test_a_cache_that_is_none_is_refused() -> None:
    with pytest.raises(mmcache.BadArgument, match=r"an mmcache\.Cache"):
        mmcache.Stages(QWEN(), cache="4GiB")  # type: ignore[arg-type]
