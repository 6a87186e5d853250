"""Templates of datasets: names that have nothing in common are merged into one dataset, and prefetched as any other."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from itertools import count
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.ahead.dataset import registry as registry_module
from outrider.core.ahead.dataset import templates as templates_module
from outrider.core.ahead.dataset.templates import Templates, prefix_of, template_of
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion
from outrider.simulator.run import EpochResult, Machine, Simulation
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of
from tests.support.held_memory import held_bytes
from tests.support.trials import SCALE

MIB = 2**20
ODD_NAMES_MAX, ODD_FOLDERS_MAX, SHARED_MAX, PLACES_MAX = 32, 1024, 1024, 4096


def digest(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


def clip(number: int) -> str:
    """A clip's name on YouTube, with the seconds that Kinetics takes of it."""
    return f"{urlsafe_b64encode(digest(number)).decode()[:11]}_{number % 300:06d}_{number % 300 + 10:06d}.mp4"


NAMES: dict[str, Callable[[int], str]] = {
    "clips": lambda number: f"clips/{clip(number)}",
    "short hexadecimal": lambda number: f"images/{digest(number).hex()[:8]}.jpg",
    "base 36": lambda number: (
        "".join("0123456789abcdefghijklmnopqrstuvwxyz"[n % 36] for n in digest(number)[:9]) + ".png"
    ),
    "captions": lambda number: f"img/{number:05d}_{'abcdefghij'[number % 10]}{digest(number).hex()[:5]}_on_a_mat.jpg",
}


@pytest.mark.parametrize(("key", "template"), [
    ("s/shard-00000-of-00016.tar", "s/shard-{}-of-{}.tar"), ("s/shard-07-of-16.tar", "s/shard-{}-of-{}.tar"),
    ("s/train-5-of-8.tfrecord", "s/train-{}-of-{}.tfrecord"), ("v2/part_3_of_12", "v2/part_{}_of_{}"),
    ("train2-000123.tar", "train2-{}.tar"), ("bag-2-offcut-7.tar", "bag-2-offcut-{}.tar"),
    (f"{'f' * 40}-7", f"{'f' * 40}-{{}}"), (f"{'f' * 39}7.jpg", "{}.jpg"), (f"g{'f' * 15}7{'f' * 9}.jpg", "g{}.jpg"),
    (f"12345678-1234-1234-1234-12345678901f{'f' * 15}7.jpg", "{}{}.jpg"),
    (f"x{'f' * 30}12345678-1234-1234-1234-123456789012.jpg", "x{}-{}-{}-{}-{}.jpg"),
    (f"a/xyz/ab/c/{'f' * 15}7", "a/xyz/{}/{}/{}"), (f"ab/cd//{'0' * 16}", "ab/cd//{}"),
    ("train/imagenet-train-000123.tar", "train/imagenet-train-{}.tar"),
    ("n01440764/n01440764_10026.JPEG", "n{}/n{}_{}.JPEG"),
    ("v1/part-7.tar", "v1/part-{}.tar"),
    ("train2/x-12.tar.gz", "train2/x-{}.tar.gz"),
    ("a/b/cat.jpg", "a/b/*.jpg"),
    ("a/README", "a/*"),
    ("k/123e4567-e89b-12d3-a456-426614174000.parquet", "k/{}.parquet"),
    ("shard.00001.mds", "shard.{}.mds"),
    ("data/0a/f3/0af3c29be1d04455aa17.bin", "data/{}/{}/{}.bin"),
    ("data/b/bcd/0af3c29be1d04455aa17.bin", "data/{}/{}/{}.bin"),
    ("files/md5/ab/0af3c29be1d04455aa17", "files/md5/{}/{}"),
    ("data/ab/train/0af3c29be1d04455aa17.bin", "data/ab/train/{}.bin"),
    ("data/ab/part-1.tar", "data/ab/part-{}.tar"),
])  # fmt: skip
def test_the_numbers_that_vary_within_a_dataset(key: str, template: str) -> None:
    assert template_of(key) == template
    assert key.startswith(prefix_of(template))


@given(st.text(max_size=40))
def test_any_key_has_a_template_and_is_under_its_prefix(key: str) -> None:
    assert key.startswith(prefix_of(template_of(key)))


@pytest.mark.parametrize("name", NAMES)
def test_names_with_nothing_in_common_but_their_folder_are_one_dataset(name: str) -> None:
    templates, key = Templates(), NAMES[name]
    assert len({template_of(key(number)) for number in range(1000)}) > 400
    for number in range(1000):
        templates.of("b", key(number))
    assert len({templates.of("b", key(number)) for number in range(1000)}) <= 10
    folder, slash, last = key(0).rpartition("/")
    # Templates that two names shared before the merger stay datasets of their own.
    (most, count), *_ = Counter(templates.of("b", key(number)) for number in range(1000)).most_common()
    assert most == f"{folder}{slash}*.{last.rpartition('.')[2]}"
    assert count > 950


@pytest.mark.parametrize(("kind", "name"), [("photo.jpg", "*.jpg"), ("labels/mask-{}.png", "labels/mask-{}.png")])
def test_folders_of_one_sample_each_are_one_dataset(kind: str, name: str) -> None:
    templates = Templates()
    keys = [f"{digest(number).hex()[:7]}x/{kind.format(number)}" for number in range(3000)]
    for key in keys:
        templates.of("b", key)
    (most, count), *_ = Counter(templates.of("b", key) for key in keys).most_common()
    assert most == f"*/{name}"
    assert count > 2500


def test_folders_of_one_class_each_are_datasets_of_their_own() -> None:
    templates, classes = (
        Templates(),
        ["abcdefghij"[n // 100] + "abcdefghij"[n // 10 % 10] + "klmnopqrst"[n % 10] for n in range(1000)],
    )
    keys = [f"train/{name}/{name}_{number:05d}.jpg" for name in classes for number in range(20)]
    for key in Random(1).sample(keys, len(keys)):
        assert templates.of("b", key) == template_of(key)
    assert templates.mergers == 0


def test_classes_beyond_the_bound_of_datasets_are_one_dataset() -> None:
    templates = Templates()
    keys = [
        f"train/{'abcdefghij'[n % 10]}{digest(n).hex()}x/{number:05d}.jpg" for n in range(3000) for number in range(3)
    ]
    names = {templates.of("b", key) for key in Random(1).sample(keys, len(keys))}
    assert len({templates.of("b", key) for key in keys}) <= ODD_FOLDERS_MAX + SHARED_MAX
    assert "train/*/{}.jpg" in names


def test_datasets_beside_single_names_are_not_merged() -> None:
    templates = Templates()
    shards = [f"data/{kind}-{number:06d}.tar" for kind in ("train", "val", "v2x") for number in range(3)]
    odd = [f"data/{digest(number).hex()[:8]}.tar" for number in range(500)]
    for key in [*shards, *odd]:
        templates.of("b", key)
    assert [templates.of("b", key) for key in shards] == [template_of(key) for key in shards]
    assert templates.of("b", odd[-1]) == "data/*.tar"
    assert templates.of("other", odd[-1]) == template_of(odd[-1])


def test_folders_beside_some_merged_folders_are_merged_too() -> None:
    templates = Templates()
    for number in range(4 * (ODD_NAMES_MAX + 10)):
        templates.of("b", f"train/{'abcd'[number % 4]}/{clip(number)}")
    assert templates.of("b", f"train/never met/{clip(5000)}") == "train/never met/*.mp4"
    assert templates.of("b", f"val/never met/{clip(5000)}") != "val/never met/*.mp4"


def test_many_folders_of_single_names_are_merged_in_any_order_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while, each single name is a place of its own, too. These must not displace the folders."""
    monkeypatch.setattr(templates_module, "_PLACES_MAX", 200)
    templates = Templates()
    keys = [f"train/{'abcdefghij'[folder] * 3}/{clip(100 * folder + n)}" for folder in range(10) for n in range(100)]
    for key in Random(1).sample(keys, len(keys)):
        templates.of("b", key)
    assert len({templates.of("b", key) for key in keys}) <= 15


def test_further_folders_of_single_names_cause_no_merger() -> None:
    """The registry looks at all of its datasets after each merger."""
    templates = Templates()
    for number in range(4 * (ODD_NAMES_MAX + 10)):
        templates.of("b", f"train/{'abcd'[number % 4]}/{clip(number)}")
        templates.of("b", f"train/{'abcdefghij'[number % 10]}/late/{clip(number)}")
    before = templates.mergers
    for number in range(200):
        assert templates.of("b", f"train/{digest(number).hex()}x/{clip(number)}").endswith("/*.mp4")
    assert templates.mergers == before


def test_merged_folders_do_not_undo_each_other_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates_module, "_PLACES_MAX", 100)
    templates, folders = Templates(), [f"v/{'abcdefghij'[n // 10]}{'klmnopqrst'[n % 10]}" for n in range(100)] * 2
    for index, folder in enumerate(folders):
        for number in range(ODD_NAMES_MAX + 8):
            templates.of("b", f"{folder}/{clip(1000 * index + number)}")
    assert {templates.of("b", f"{folder}/{clip(10**6)}") for folder in folders} == {f"{name}/*.mp4" for name in folders}


def test_keys_that_may_not_exist_cause_no_merger() -> None:
    templates = Templates()
    for number in range(1000):
        assert templates.so_far("b", f"clips/{clip(number)}") == template_of(f"clips/{clip(number)}")
    assert templates.mergers == 0
    for number in range(ODD_NAMES_MAX + 1):
        templates.of("b", f"clips/{clip(number)}")
    templates.of("b", f"clips/{clip(7000)}")
    assert templates.so_far("b", f"clips/{clip(7000)}") == "clips/*.mp4"


def test_a_key_that_is_read_again_and_again_counts_once() -> None:
    templates = Templates()
    for number in range(100):
        templates.of("b", f"models/layer{number % 5}a.bin")
    assert templates.mergers == 0


@given(st.lists(st.text("ab1/.-", max_size=8), max_size=60), st.integers(0, 2**32))
def test_a_key_begins_with_the_prefix_of_its_dataset(keys: list[str], seed: int) -> None:
    templates = Templates()
    for key in keys:
        name = templates.of("b", key)
        assert key.startswith(name.partition("*")[0].partition("{}")[0])
    Random(seed).shuffle(keys)
    assert {templates.of("b", key) for key in keys} == {templates.of("b", key) for key in keys}


def test_the_places_that_are_remembered_are_bounded() -> None:
    templates, held = Templates(), []
    for number in range(4 * PLACES_MAX):
        templates.of("b", f"{digest(number).hex()[:8]}x/{digest(number).hex()[:7]}.{number % 977}x")
        if number in (2 * PLACES_MAX, 4 * PLACES_MAX - 1):
            held.append(held_bytes(templates))
    assert held[1] < 1.1 * held[0]


def test_the_keys_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates_module, "_SINGLE_KEYS_MAX", 1000)
    templates, held = Templates(), []
    for number in range(5000):
        templates.of("b", f"flat/{number % 200}/x{digest(number).hex()[:7]}.{number % 699}x")
        if number in (500, 4999):
            held.append(held_bytes(templates))
    assert held[1] < 1.1 * held[0]


def test_a_dataset_of_its_own_beside_single_names_is_remembered_longest() -> None:
    templates = Templates()
    for number in range(2):
        templates.of("b", f"data/train-{number:05d}.tar")
    for number in range(ODD_NAMES_MAX + 1):
        templates.of("b", f"data/{digest(number).hex()[:8]}x.tar")
    for number in range(5000):
        templates.of("b", f"frames/{digest(number).hex()[:9]}x/img_00001.jpg")
    assert templates.mergers == 2, "nothing is settled that was so before"
    assert templates.of("b", "data/train-00007.tar") == "data/train-{}.tar"


def test_merged_places_beyond_the_bound_are_forgotten_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates_module, "_PLACES_MAX", 100)
    templates = Templates()
    for place in range(101):
        for number in range(ODD_NAMES_MAX + 1):
            templates.of(f"bucket{place}", clip(number))
    merged = [templates.of(f"bucket{place}", clip(10**6)) == "*.mp4" for place in range(101)]
    assert merged == [False, *[True] * 100]


# -- merged datasets in the planner -----------------------------------------------------------------------------------


def read(planner: Planner, key: str, now: float) -> None:
    ref = ObjectRef("b", key)
    planner.requested("a", ref, MIB, Extent(0, MIB), now)
    planner.sent("a", ref, now)


def test_a_merged_dataset_is_listed_after_the_merger() -> None:
    planner = Planner(1000 * MIB, MIB)
    for number in range(ODD_NAMES_MAX):
        read(planner, f"clips/{clip(number)}", 0.1 * number)
    assert planner.discovery.please_list() == []
    read(planner, f"clips/{clip(ODD_NAMES_MAX)}", 4.0)
    assert planner.discovery.please_list() == [("b", "clips/")]
    planner.discovery.listed("b", sorted((f"clips/{clip(number)}", MIB) for number in range(300)))
    (dataset,) = planner.registry.datasets()
    assert len(dataset.names.keys) == len(planner.registry) == 300
    unread = {f"clips/{clip(number)}" for number in range(ODD_NAMES_MAX + 1, 300)}
    wanted = {want.ref.key for want in planner.wants(4.2, 1000 * MIB, 16)}
    assert wanted
    assert wanted <= unread


def test_cached_objects_move_into_the_merged_dataset() -> None:
    planner, blocks = Planner(1000 * MIB, MIB), []
    for number in range(100):
        key = f"clips/{clip(number)}"
        read(planner, key, 0.1 * number)
        blocks.append(BlockKey(number.to_bytes(16, "big"), 0))
        planner.added(blocks[-1], ObjectVersion(ObjectRef("b", key), '"e"', MIB))
    (dataset,) = planner.registry.datasets()
    assert dataset.kept_bytes == 100 * MIB
    assert sorted(planner.victims()) == sorted(blocks)
    for block in blocks:
        planner.removed(block)
    assert (dataset.kept_bytes, dataset.cached, list(planner.victims())) == (0, {}, [])


def test_a_list_of_single_names_shows_one_dataset() -> None:
    planner = Planner(1000 * MIB, MIB)
    planner.discovery.listed("b", [(f"clips/{clip(number)}", MIB) for number in range(ODD_NAMES_MAX + 10)])
    (dataset,) = planner.registry.datasets()
    assert len(dataset.names.listed) == ODD_NAMES_MAX + 10


def become_one(planner: Planner, now: float) -> None:
    for number in range(1000, 1000 + ODD_NAMES_MAX):
        read(planner, f"clips/{clip(number)}", now)
    assert len(planner.registry.datasets()) == 1


def test_outstanding_objects_move_into_the_merged_dataset() -> None:
    planner = Planner(1000 * MIB, MIB)
    refs = [ObjectRef("b", f"clips/{clip(number)}") for number in range(8)]
    planner.announced("a", refs, 0.0)
    outstanding = [want.ref for want in planner.wants(0.0, 1000 * MIB, 16)]
    assert sorted(outstanding) == sorted(refs)
    become_one(planner, 0.1)
    planner.discovery.listed("b", [(ref.key, MIB) for ref in refs])
    planner.announced("a", refs, 0.2)
    assert planner.outstanding.blocks == 8
    assert planner.wants(0.3, 1000 * MIB, 16) == []
    for number, ref in enumerate(refs):
        planner.added(BlockKey(number.to_bytes(16, "big"), 0), ObjectVersion(ref, '"e"', MIB))
    assert planner.outstanding.blocks == 0


def test_a_reader_amid_an_object_stays_its_reader_after_a_merger() -> None:
    opened: list[ObjectRef] = []
    planner = Planner(1000 * MIB, MIB, opened=lambda ref, size: opened.append(ref))
    ref, version_id = ObjectRef("b", f"clips/{clip(1)}"), b"v" * 16
    planner.requested("a", ref, 2 * MIB, Extent(0, MIB), 0.0)
    for index in range(2):
        planner.added(BlockKey(version_id, index), ObjectVersion(ref, '"e"', 2 * MIB))
    planner.read(BlockKey(version_id, 0))
    become_one(planner, 0.1)
    assert list(planner.victims()) == [BlockKey(version_id, 0)], "the other block is still to be read"
    planner.requested("a", ref, 2 * MIB, Extent(MIB, 2 * MIB), 0.2)
    assert opened.count(ref) == 1
    planner.read(BlockKey(version_id, 1))
    planner.sent("a", ref, 0.3)
    (dataset,) = planner.registry.datasets()
    assert [cached.reading for cached in dataset.cached.values()] == [False]


def test_a_hint_in_pieces_is_merged_as_one_hint() -> None:
    """Eight workers send a hint each, of some names in a folder, or of some folders."""
    for keys in (
        [f"clips/{clip(number)}" for number in range(160)],
        [f"users/{digest(number).hex()[:9]}x/avatar.jpg" for number in range(1600)],
    ):
        planner, hints = Planner(10**6 * MIB, MIB), []
        for worker in range(8):
            refs = [ObjectRef("b", key) for key in keys[worker::8]]
            hints.append(Hint())
            planner.announced("a", refs, 0.0, total=len(refs), hint=hints[-1])
        assert sum(len(piece.unread) for hint in hints for piece in hint.pieces(10**6)) == len(keys)
        assert sum(planner.withdraw(hint, (), 0.1) for hint in hints) == len(keys)


def test_a_hint_of_many_datasets_that_are_merged_is_kept_for_the_merged_ones() -> None:
    planner = Planner(10**6 * MIB, MIB)
    odd = [f"clips/{clip(number)}" for number in range(40)]
    folders = [f"frames/{digest(number).hex()[:9]}x/img_00001.jpg" for number in range(2000)]
    planner.announced("a", [ObjectRef("b", key) for key in [*odd[:20], *folders, *odd[20:]]], 0.0)
    assert len(planner.registry) == sum(len(dataset.names.keys) for dataset in planner.registry.datasets()) == 2040
    assert len(planner.registry.datasets()) < 30


@pytest.mark.parametrize("at", range(20))
def test_a_merger_in_the_midst_of_a_hint_applies_to_all_of_it(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of the calls of `Templates.of` during a hint."""
    planner = Planner(10**6 * MIB, MIB)
    refs, asked, of = [ObjectRef("b", f"clips/{clip(number)}") for number in range(5)], count(), Templates.of

    def merged_then(self: Templates, bucket: str, key: str) -> str:
        if next(asked) == at:
            self._merge(templates_module._Place("b", "clips/*.mp4", in_folder=False))
        return of(self, bucket, key)

    monkeypatch.setattr(Templates, "of", merged_then)
    hint = Hint()
    planner.announced("a", refs, 0.0, hint=hint)
    assert sorted(ref for piece in hint.pieces(10**6) for ref in piece.unread) == sorted(refs)
    assert len(planner.registry) == 5


def test_a_dataset_in_use_is_not_merged_whatever_comes_beside_it() -> None:
    """Single names come beside it, and then so many folders that the single names are forgotten."""
    planner, now = Planner(10**6 * MIB, MIB), 0.0
    train = [f"data/train-{number:05d}.tar" for number in range(100)]
    for key in [*train, *(f"data/{digest(number).hex()[:8]}x.tar" for number in range(40)), *train, *train[:50]]:
        now += 0.01
        read(planner, key, now)
    planner.discovery.listed("b", [(key, MIB) for key in train])
    outstanding = planner.wants(now, 10**12, 16)
    frames = [(f"frames/{digest(number).hex()[:9]}x/img_{n:05d}.jpg", MIB) for number in range(5000) for n in range(2)]
    for begin in range(0, len(frames), 1000):
        planner.discovery.listed("b", frames[begin : begin + 1000], more=True)
    for want in outstanding:
        planner.added(BlockKey(want.ref.key.encode()[-16:].rjust(16), 0), ObjectVersion(want.ref, '"e"', MIB))
    assert planner.outstanding.blocks == 0
    assert {want.ref.key for want in planner.wants(now, 10**12, 4)} <= set(train[50:60])
    assert len(
        next(dataset for dataset in planner.registry.datasets() if "train" in dataset.template).names.keys
    ) == len(train)


def test_a_dataset_of_several_names_is_never_merged_into_another(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(10**6 * MIB, MIB)
    for number in range(2):
        read(planner, f"data/train-{number:05d}.tar", 0.1 * number)
    monkeypatch.setattr(Templates, "of", lambda self, bucket, key: "data/*.tar")
    read(planner, "data/train-00007.tar", 1.0)
    (dataset,) = planner.registry.datasets()
    assert (dataset.template, len(dataset.names.keys)) == ("data/train-{}.tar", 3)


def test_an_object_handed_out_before_a_merger_lands_as_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for how in ("added", "dropped"):
        planner = Planner(1000 * MIB, MIB)
        refs = [ObjectRef("b", f"clips/{clip(number)}") for number in range(40)]
        planner.announced("a", refs, 0.0)
        outstanding = planner.wants(0.0, 1000 * MIB, 16)
        with monkeypatch.context() as patched:
            patched.setattr(planner.registry, "_name_of", lambda bucket, key: (bucket, "another"))
            for number, want in enumerate(outstanding):
                if how == "added":
                    block = BlockKey(number.to_bytes(16, "big"), 0)
                    planner.added(block, ObjectVersion(want.ref, '"e"', MIB))
                else:
                    planner.dropped(want.ref)
        assert planner.outstanding.blocks == 0


def test_single_names_are_merged_at_the_bound_of_datasets_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "_DATASETS_MAX", 1024)
    planner = Planner(1000 * MIB, MIB)
    for number in range(ODD_NAMES_MAX):
        read(planner, f"clips/{clip(number)}", 0.001 * number)
    for number in range(1024 - ODD_NAMES_MAX):
        read(planner, f"only.{'abcdefghij'[number % 10]}{number}x", 1.0 + 0.001 * number)
    read(planner, f"clips/{clip(ODD_NAMES_MAX)}", 10.0)
    assert {dataset.template: len(dataset.names.keys) for dataset in planner.registry.datasets()}[
        "clips/*.mp4"
    ] == ODD_NAMES_MAX + 1
    assert len(planner.registry) == sum(len(dataset.names.keys) for dataset in planner.registry.datasets())


def test_a_merger_outlives_a_restart() -> None:
    planner = Planner(1000 * MIB, MIB)
    order = Random(1).sample(range(200), 200)
    for epoch in range(2):
        for number in order:
            read(planner, f"clips/{clip(number)}", epoch * 200.0 + number)
    later = Planner(1000 * MIB, MIB)
    later.registry.restore(planner.registry.export())
    for number in order[:12]:
        read(later, f"clips/{clip(number)}", 1000.0 + number)
    (dataset,) = later.registry.datasets()
    assert dataset.template == "clips/*.mp4"
    assert {want.ref.key for want in later.wants(1000.5, 1000 * MIB, 4)} <= {f"clips/{clip(n)}" for n in order[12:30]}


@dataclass(frozen=True)
class OddShards(Shards):
    def key(self, index: int) -> str:
        return _odd_names(self.name, self.count)[index]


@cache
def _odd_names(folder: str, count: int) -> list[str]:
    """In the order in which a job has them from a LIST."""
    return sorted(f"{folder}/{digest(index).hex()[:8]}.tar" for index in range(count))


@pytest.mark.parametrize("kind", ["repeated", "fresh"] if SCALE > 1 else ["fresh"])
def test_single_names_are_prefetched_as_well_as_numbered_names(kind: OrderKind) -> None:
    def epochs(shards: Shards) -> list[EpochResult]:
        spec = JobSpec("train", shards, order_of(kind, list(range(shards.count)), 4, 1), 3, 50.0 * MIB, "10.0.0.1")
        return Simulation(Machine(shards.count * shards.size // 4, 1.3 * 4 * 50.0 * MIB), "epoch", [spec]).run()

    # In an order that repeats, a quarter of 300 names is read before they are merged.
    count = 1000 if SCALE > 1 else 300
    numbered, odd = epochs(Shards(count, 32 * MIB, "train")), epochs(OddShards(count, 32 * MIB, "train"))
    for epoch, other in zip(numbered, odd, strict=True):
        # In the first epoch so many names are read before they are merged.
        assert other.hits >= epoch.hits - (ODD_NAMES_MAX if epoch.number == 1 else 0.02 * epoch.opened)
