"""Files decoded in child processes are what they are in this one; a decoder that hangs, crashes, eats memory or lies
costs its own request alone, and leaves nothing behind.

`odd_worker` is a child that does all this.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import numpy as np
import pytest

from corellm import LLM
from corellm.children.child import Child
from corellm.children.memory import KEPT_BYTES, SharedMemory
from corellm.config import MEDIA_FORMATS, EngineConfig, MultiModalConfig
from corellm.errors import (
    ConfigError,
    MediaBusyError,
    MediaError,
    MediaTimeoutError,
    MediaTooLargeError,
    ProcessingError,
)
from corellm.media.frames import load_frames
from corellm.media.image import load_image
from corellm.media.pool import MediaPool
from corellm_media.audio import load_audio
from corellm_media.pooled_video import PooledVideo
from corellm_media.video.files import load_video
from extensions.media.tests import test_audio, test_audio_streams, test_video_files
from extensions.media.tests.videos import encode, moving, plain
from tests.media import test_image
from tests.media.odd_worker import FRAMES, LIES

pytestmark = pytest.mark.fresh_starts
LIMIT = test_image.LIMIT
WORKER = "corellm_media.worker"
PNG = test_image.FILES["PNG"]
ROOT = str(Path(__file__).parents[2])
START = MediaPool.start
"""As it is before the conftest has pools start with their first file."""


def start_all(pool: MediaPool) -> None:
    """Start the children that do not run."""
    for child in pool._children._children:
        child.start()


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[MediaPool]:
    """Two children that do what files say, and have the time of a busy machine."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    pool = MediaPool(2, 60.0, "tests.media.odd_worker")
    start_all(pool)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def outliving() -> Iterator[MediaPool]:
    """The same for many faults, one after another, where nothing is left of earlier tests."""
    gc.collect()
    gc.freeze()  # what is there is not looked through again
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ROOT)
        pool = MediaPool(2, 60.0, "tests.media.odd_worker")
        yield pool
        pool.close()
    gc.unfreeze()


def hasty(pool: MediaPool) -> MediaPool:
    """The same children, for a second."""
    other = copy.copy(pool)
    other._seconds = 1.0
    return other


def kill_children(pool: MediaPool) -> None:
    """End what they are doing."""
    for pid in [child._running.process.pid for child in pool._children._children if child._running]:
        os.kill(pid, signal.SIGKILL)


def children() -> set[int]:
    """Processes of this test that are not ended."""
    command = ["ps", "-o", "pid=,stat=,comm=", "--ppid", str(os.getpid())]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {int(pid) for pid, stat, name in map(str.split, lines) if "Z" not in stat and name != "ps"}


def other_descriptors(pool: MediaPool) -> int:
    """How many this process has, beside each child's: a socket, memory, and its mapping."""
    running = [child._running for child in pool._children._children if child._running is not None]
    held = sum(2 + (one.memory._mapped is not None) for one in running)
    return len(os.listdir("/proc/self/fd")) - held if os.path.isdir("/proc/self/fd") else 0


# --- the same as in this process --------------------------------------------------------------------------------------


def image(data: bytes, pool: MediaPool | None) -> Any:
    return load_image(data, LIMIT, pool=pool).tobytes()


def audio(data: bytes, pool: MediaPool | None) -> Any:
    return load_audio(data, 16_000, 20.0, pool=pool).tobytes()


def video(data: bytes, pool: MediaPool | None) -> Any:
    opened = load_video(data, MultiModalConfig(max_video_pixels=1 << 20), pool)
    times = opened.timestamps(range(opened.num_frames))
    return opened.metadata, times, b"".join(frame.tobytes() for frame in opened.read())


def outcome(read: Callable[[bytes, MediaPool | None], Any], data: bytes, pool: MediaPool | None) -> Any:
    """What reading returns, or all of what it raises. (Whether a fault is found at once depends on threads.)"""
    try:
        return read(data, pool)
    except MediaError as error:
        return type(error), str(error).removeprefix("the video "), error.expected, error.got


def streams() -> dict[str, bytes]:
    kinds = ("M4A", "AAC", "WebM, Opus")
    return {kind: test_audio_streams.encoded(kind, test_audio_streams.tones(20_000, 44_100)) for kind in kinds}


CORPUS: dict[str, tuple[Callable[[bytes, MediaPool | None], Any], Callable[[], dict[str, bytes]], int]] = {
    "images": (image, lambda: test_image.FILES | test_image.BOMBS | {"none": b"", "text": b"hello there " * 9}, 12),
    "audio": (audio, lambda: test_audio.FILES | {"none": b"", "not finite": not_finite()}, 6),
    "audio streams": (audio, streams, 6),
    "videos": (video, lambda: {name: test_video_files.small_file(name) for name in test_video_files.SMALL}, 6),
}


def not_finite() -> bytes:
    return test_audio.encoded(np.array([0.0, np.nan, 0.0]), 16_000, "WAV", "FLOAT")


@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")
@pytest.mark.parametrize("name", CORPUS)
def test_a_child_reads_what_this_process_reads(media_pool: MediaPool, name: str) -> None:
    """Whole files, cut ones, damaged ones: the same values, or the same error with the same numbers."""
    read, files, variants = CORPUS[name]
    rng = np.random.default_rng(1)
    for data in files().values():
        tried = [data, *(data[: len(data) * n // variants] for n in range(1, variants))]
        for _ in range(variants):
            damaged = bytearray(data)
            for place in rng.integers(0, max(1, len(data)), size=3 if data else 0):
                damaged[place] = rng.integers(0, 256)
            tried.append(bytes(damaged))
        for one in tried:
            assert outcome(read, one, media_pool) == outcome(read, one, None)


def test_names_and_formats_reach_the_child(media_pool: MediaPool, tmp_path: Path) -> None:
    """A path is named in errors, whatever its name is; a format that is not accepted is refused."""
    path = tmp_path / os.fsdecode(b"odd \xff \n name.png")
    path.write_bytes(PNG[:100])
    with pytest.raises(MediaError, match=r"odd \\udcff \\n name\.png': broken"):
        load_image(path, LIMIT, pool=media_pool)
    others = [name for name in MEDIA_FORMATS if name != "png"]
    with pytest.raises(MediaError, match="the format png") as caught:
        load_image(PNG, LIMIT, others, media_pool)
    assert caught.value.expected == tuple(others)


def test_trusted_forms_never_cross(media_pool: MediaPool) -> None:
    """Arrays and open images are converted here: no child is started."""
    idle = MediaPool(1, 0.0, "no.such.module")
    assert load_image(np.zeros((8, 8, 3), np.uint8), LIMIT, pool=idle).size == (8, 8)
    assert len(load_audio((np.zeros(9), 8_000), 16_000, 9.0, pool=idle)) == 18
    assert load_frames(np.zeros((2, 8, 8, 3), np.uint8), MultiModalConfig()).num_frames == 2


def test_a_pool_can_start_before_its_first_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the background; one that cannot start, or is closed meanwhile, says so with its first file only."""
    pool = MediaPool(1, 60.0, WORKER)
    read, decode = [], pool.image
    monkeypatch.setattr(pool, "image", lambda *given: read.append(decode(*given)))
    START(pool)
    join_starting()
    monkeypatch.undo()
    assert [image.size for image in read] == [(1, 1)]
    started = pool._children._children[0]._running
    assert started is not None
    load_image(PNG, LIMIT, pool=pool)
    assert pool._children._children[0]._running is started
    pool.close()
    for broken in (MediaPool(1, 9.0, "no.such.module"), pool):
        START(broken)
        join_starting()
        with pytest.raises(ProcessingError):
            load_image(PNG, LIMIT, pool=broken)


def test_a_model_that_takes_media_has_its_pool_start(tiny_llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it loads."""
    started: list[MediaPool] = []
    monkeypatch.setattr(MediaPool, "start", lambda pool: started.append(pool))
    with LLM(str(tiny_llava)):
        assert len(started) == 1


def join_starting() -> None:
    """Wait for the threads that start pools."""
    for thread in threading.enumerate():
        if thread.name == "corellm-media-start":
            thread.join()


def test_videos_are_opened_again_where_a_child_forgot_them(media_pool: MediaPool) -> None:
    """More videos than children remember, read by turns and from many threads."""
    data = encode([moving(n) for n in range(12)], options={"x264-params": test_video_files.X264})
    here = list(load_video(data, MultiModalConfig()).read())
    videos = [load_video(data, MultiModalConfig(), media_pool) for _ in range(6)]
    readers = [video.read([1, 5, 11]) for video in videos]
    for index in (1, 5, 11):
        assert all(np.array_equal(next(reader), here[index]) for reader in readers)
    with ThreadPoolExecutor(6) as threads:
        for frames in threads.map(lambda video: list(video.read()), videos):
            assert all(np.array_equal(*pair) for pair in zip(frames, here, strict=True))


def test_frames_come_in_several_parts(media_pool: MediaPool) -> None:
    """Frames of more bytes than a child returns at once come in parts; an error comes after the frames before it."""
    large = [plain(n, 1920, 1080) for n in range(9)]  # 6 MB each
    data = encode(large, "mjpeg", "mov", pixels="yuvj420p")
    video = load_video(data, MultiModalConfig(), media_pool)
    assert [test_video_files.same_colour(frame, n) for n, frame in enumerate(video.read())] == [True] * 9
    broken = bytearray(data)
    start = broken.rfind(b"\xff\xc0\0\x11")
    broken[start : start + 19] = bytes(19)
    frames = load_video(bytes(broken), MultiModalConfig(), media_pool).read()
    assert sum(1 for _ in zip(range(8), frames, strict=False)) == 8
    with pytest.raises(MediaError, match=r"^frame 8 "):
        next(frames)


def test_memory_of_earlier_videos_is_no_ones_fault() -> None:
    """A child forgets them where a later file needs the memory; that of a file too large is the file's own."""
    small = encode([plain(n) for n in range(3)])
    filling = (100 << 20).to_bytes(4, "big") + b"free" + bytes((100 << 20) - 8)
    limits, pool = MultiModalConfig(max_video_pixels=1 << 16), MediaPool(1, 60.0, WORKER)
    opened = [load_video(small + filling, limits, pool) for _ in range(5)]
    assert load_image(PNG, LIMIT, pool=pool).size == (40, 30)
    assert [len(list(video.read())) for video in opened] == [3] * 5
    pool.close()


# --- what goes wrong --------------------------------------------------------------------------------------------------

FAULTS = {
    "hang": (MediaTimeoutError, r"the data takes longer than 1 s to decode; .*raise media_timeout"),
    "loop": (MediaTimeoutError, r"the data takes longer than 1 s to decode"),
    "crash": (MediaError, "decoder crashed"),
    "exit": (MediaError, "decoder crashed"),
    "eat": (MediaTooLargeError, r"\d+ MiB"),
    "prints": (MediaError, "not a JPEG"),
    "shrinks": (MediaError, "not permitted"),
    "seals": (MediaError, "not permitted"),
    "grows": (MediaError, "grown"),
    "noise": (MediaError, "its decoder crashed"),
    "many files": (MediaError, "its decoder crashed"),
    **dict.fromkeys((*LIES, *FRAMES), (MediaError, "its decoder crashed")),
}
del FAULTS["no time"]  # which is a lie of videos


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_its_own_request_alone(outliving: MediaPool, name: str) -> None:
    """A typed error; neighbours get their images meanwhile and afterwards; the pool is as it was."""
    kind, words = FAULTS[name]
    gc.collect()
    start_all(outliving)
    before = other_descriptors(outliving), len(children())

    def fail() -> None:
        with pytest.raises(kind, match=words):
            load_image(
                f"{name}! and more".encode(), LIMIT, pool=hasty(outliving) if kind is MediaTimeoutError else outliving
            )

    with ThreadPoolExecutor(2) as threads:
        failing = threads.submit(fail)
        for _ in range(20):
            assert load_image(PNG, LIMIT, pool=outliving).tobytes() == test_image.noise().tobytes()
        failing.result()
    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(lambda _: load_image(PNG, LIMIT, pool=outliving).size, range(20)))
    assert both == [(40, 30)] * 20
    gc.collect()
    assert other_descriptors(outliving) == before[0]
    assert len(children()) <= before[1]


def test_numbers_beyond_floats(odd: MediaPool) -> None:
    """A video that lasts longer than a float can say is a lie, too."""
    with pytest.raises(MediaError, match="its decoder crashed"):
        PooledVideo(odd, b"no time!", "mov", MultiModalConfig())


def test_files_of_any_size_and_their_neighbours() -> None:
    """What a child remembers of videos counts for no other file, and a video's own bytes do not count for its frames.

    More than Python and the libraries may take, and each frame is small.
    """
    small = encode([moving(n) for n in range(6)], options={"x264-params": test_video_files.X264})
    data = small + (300 << 20).to_bytes(4, "big") + b"free" + bytes((300 << 20) - 8)
    pool, limits = MediaPool(1, 60.0, WORKER), MultiModalConfig(max_video_pixels=1 << 20)
    for _ in range(3):
        video = load_video(data, limits, pool)
        assert load_image(PNG, LIMIT, pool=pool).size == (40, 30)
        assert len(list(video.read())) == 6
        assert load_image(PNG, LIMIT, pool=pool).size == (40, 30)
    pool.close()


def test_memory_that_may_shrink_is_copied() -> None:
    """A mapping of it could end this process."""
    shared = SharedMemory(os.memfd_create("any"))
    shared.write(b"0123456789")
    with shared.view(5, 2) as view:
        os.ftruncate(shared.descriptor, 0)
        assert bytes(view) == b"23456"
    shared.close()


def test_shared_memory_is_as_long_as_what_was_written() -> None:
    """No more is read, whatever another process says; what is more than usual is given back, and can be used again."""
    shared = SharedMemory.create()
    assert shared.write(b"0123456789", 2) == 12
    for count, at in ((13, 0), (1, 12), (1 << 60, 0)):
        with pytest.raises(EOFError):
            shared.read(count, at)
        with pytest.raises(EOFError), shared.view(count, at):
            pass
    with shared.view(3, 2) as view:
        assert bytes(view) == b"012"
        shared.write(b"ab", 2)
        assert bytes(view) == b"ab2" == shared.read(3, 2)
    shared.trim()
    assert shared.read(3, 2) == b"ab2"
    shared.write(bytes([7]) * (KEPT_BYTES + 1))
    with shared.view(KEPT_BYTES + 1) as view:
        shared.trim()
        assert os.fstat(shared.descriptor).st_blocks == 0
        assert view[KEPT_BYTES] == 0
    shared.write(b"again")
    with shared.view(5) as view:
        assert bytes(view) == b"again"
    shared.close()


def test_when_all_are_busy_others_wait_no_longer_than_the_limit(odd: MediaPool) -> None:
    """And are told so; those that get a child in time are read."""
    with ThreadPoolExecutor(3) as threads:
        hanging = [threads.submit(load_image, b"hang!", LIMIT, pool=odd) for _ in range(2)]
        while len(odd._children._free()):
            time.sleep(0.01)
        with pytest.raises(MediaBusyError, match=r"all 2 processes .* media_workers") as caught:
            load_image(PNG, LIMIT, pool=hasty(odd))
        assert caught.value.expected == 1.0
        waiting = threads.submit(load_image, PNG, LIMIT, pool=odd)
        kill_children(odd)
        assert waiting.result().size == (40, 30)
        assert all(isinstance(one.exception(), MediaError) for one in hanging)


def test_children_are_started_again_and_closed(odd: MediaPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However one died; closing ends them all, also those at work."""
    kill_children(odd)
    for child in odd._children._children:
        assert child._running is not None
        while is_running(child._running.process.pid):
            time.sleep(0.01)
    assert load_image(PNG, LIMIT, pool=odd).size == (40, 30)
    others = children() - {child._running.process.pid for child in odd._children._children if child._running}
    exchange, sending = Child._exchange, threading.Event()

    def noted(child: Child, data: bytes | None, seconds: float) -> Any:
        sending.set()
        return exchange(child, data, seconds)

    monkeypatch.setattr(Child, "_exchange", noted)
    with ThreadPoolExecutor(1) as threads:
        failing = threads.submit(load_image, b"hang!", LIMIT, pool=odd)
        assert sending.wait(600)
        odd.close()
        with pytest.raises(ProcessingError, match="shut down"):
            failing.result()
    assert children() == others
    with pytest.raises(ProcessingError, match="shut down"):
        load_image(PNG, LIMIT, pool=odd)
    assert children() == others


def test_a_child_does_not_start_once_its_pool_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was lent before; and a thread that waits for one is told at once."""
    before, pool = children(), MediaPool(1, 60.0, WORKER)
    start, starting, closed = Child.start, threading.Event(), threading.Event()

    def slow_start(child: Child) -> None:
        starting.set()
        assert closed.wait(600)
        start(child)

    monkeypatch.setattr(Child, "start", slow_start)
    with ThreadPoolExecutor(2) as threads:
        late = threads.submit(load_image, PNG, LIMIT, pool=pool)
        assert starting.wait(600)
        waiting = threads.submit(load_image, PNG, LIMIT, pool=pool)
        pool.close()
        with pytest.raises(ProcessingError, match="shut down"):
            waiting.result(600)
        closed.set()
        with pytest.raises(ProcessingError, match="closed"):
            late.result(600)
    assert children() == before


def test_an_interrupt_leaves_the_pool_usable(odd: MediaPool) -> None:
    """Ctrl-C while a decoder hangs: the child is ended, and its result is not taken for another's."""
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs this beside others

    def interrupt() -> None:
        while len(odd._children._free()) == 2:
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            load_image(b"hang!", LIMIT, pool=odd)
    finally:
        signal.signal(signal.SIGINT, before)
    assert load_image(PNG, LIMIT, pool=odd).size == (40, 30)


def test_interrupts_of_every_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals between any two bytecodes, also before a child is ready: the only child is not lost, nor any file."""
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)  # in a callback they are lost to Python itself
    rng, interrupted = Random(3), 0
    pool = MediaPool(1, 60.0, WORKER)

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name == "load_image":
                raise KeyboardInterrupt
            frame = frame.f_back

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(8):
            for _ in range(5):
                signal.setitimer(signal.ITIMER_REAL, rng.choice([1e-5, 1e-4, 1e-3, 0.2]) * (1 + rng.random()))
                try:
                    load_image(PNG, LIMIT, pool=pool)
                except KeyboardInterrupt:
                    interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert load_image(PNG, LIMIT, pool=pool).size == (40, 30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    pool.close()


def test_a_child_ends_where_an_interrupt_left_its_lock(odd: MediaPool) -> None:
    """Python's own, around waiting for a process."""
    running = odd._children._children[0]._running
    assert running is not None
    lock: threading.Lock = vars(running.process)["_waitpid_lock"]
    lock.acquire()
    closing = threading.Thread(target=odd.close, daemon=True)
    closing.start()
    closing.join(600)
    assert not closing.is_alive()
    lock.release()
    running.process.wait()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_has_children_of_its_own(odd: MediaPool) -> None:
    """Also if the parent's children were lent when it forked, and it leaves none behind."""
    with ThreadPoolExecutor(2) as threads:
        hanging = [threads.submit(load_image, b"hang!", LIMIT, pool=odd) for _ in range(2)]
        while len(odd._children._free()):
            time.sleep(0.01)
        pid = os.fork()
        if pid == 0:
            size = load_image(PNG, LIMIT, pool=odd).size
            odd.close()
            os._exit(0 if size == (40, 30) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not any(one.done() for one in hanging)
        kill_children(odd)
        assert all(isinstance(one.exception(), MediaError) for one in hanging)
    assert load_image(PNG, LIMIT, pool=odd).size == (40, 30)


PARENT = """
import sys
from corellm.media.frames import load_frames
from corellm.media.image import load_image
from corellm.media.pool import MediaPool
pool = MediaPool(1, 60.0, "tests.media.odd_worker")
load_image(open(sys.argv[1], "rb").read(), 10**6, pool=pool)
pool._seconds = 1.0
print(pool._children._children[0]._running.process.pid, flush=True)
if sys.argv[2] == "busy":
    load_image(b"loop!", 10**6, pool=pool)
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_children_end_with_a_parent_that_is_killed(state: str, tmp_path: Path) -> None:
    """By the end of their input, or their timer."""
    (tmp_path / "image").write_bytes(PNG)
    command = [sys.executable, "-c", PARENT, str(tmp_path / "image"), state]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 600
    while is_running(child):
        assert time.monotonic() < deadline, "it runs on"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(listed.stdout.strip()) and "Z" not in listed.stdout


def test_a_child_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not the file's fault."""
    with pytest.raises(ProcessingError, match="cannot be started"):
        load_image(PNG, LIMIT, pool=MediaPool(1, 60.0, "no.such.module"))


# --- what children are ------------------------------------------------------------------------------------------------


def test_a_child_imports_little_and_inherits_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither torch nor decoders until they are needed."""
    code = "import sys, corellm_media.worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {m.split(".")[0] for m in loaded} & {"torch", "transformers", "numpy", "PIL", "av", "soundfile"} == set()
    monkeypatch.setenv("MY_API_KEY", "secret")
    pool = MediaPool(1, 60.0, WORKER)
    load_image(PNG, LIMIT, pool=pool)
    running = pool._children._children[0]._running
    assert running is not None
    environment = Path(f"/proc/{running.process.pid}/environ")
    if environment.exists():
        assert b"secret" not in environment.read_bytes()
        maps = Path(f"/proc/{running.process.pid}/maps").read_text()
        assert "torch" not in maps
        assert "libav" not in maps
    pool.close()


def test_the_configuration() -> None:
    """0 is none, None one per core up to four; what is no number is refused."""
    assert MediaPool.of(MultiModalConfig(media_workers=0)) is None
    assert MediaPool.of(MultiModalConfig()) is not None
    for value in (-1, 1.5, "2", True):
        with pytest.raises(ConfigError, match="media_workers"):
            EngineConfig.from_kwargs(model="m", media_workers=value)
    for value in (1e7, 10**400):
        with pytest.raises(ConfigError, match=r"media_timeout .* at most"):
            MultiModalConfig(media_timeout=value)
    for value in (-1, float("inf"), "10"):
        with pytest.raises(ConfigError, match=r"media_timeout .* finite"):
            EngineConfig.from_kwargs(model="m", media_timeout=value)
