"""Places that keep entries: folders, SQLite, fsspec (S3 too), Redis; writers side by side."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_entries import entry, many, resealed

from tessera import _core
from tessera.errors import BadInputError, IoError
from tessera.options import Options
from tessera.store.entry import Entry, RefusedError, newer
from tessera.store.stores import FolderStore, Union, configured, open_store

HERE = Path(__file__).resolve().parent
KINDS = ["folder", "sqlite", "memory", "s3", "redis"]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket on a server of this process."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3: Any = pytest.importorskip("boto3", reason="boto3 is not installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="team")
        yield "s3://team"
    running.stop()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of Redis on a free port."""
    pytest.importorskip("redis", reason="redis is not installed for Python")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
               "--dir", str(folder)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://:@127.0.0.1:{port}/0"
        server.terminate()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store is to be."""
    if request.param in ("s3", "memory"):
        pytest.importorskip("fsspec", reason="fsspec is not installed")
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/{tmp_path.name}"
    if request.param == "redis":
        url = str(request.getfixturevalue("redis"))
        pytest.importorskip("redis").Redis.from_url(url).flushdb()
        return url
    return {"folder": str(tmp_path / "f"), "sqlite": f"sqlite:{tmp_path / 'x'}",
            "memory": f"memory://{tmp_path.name}"}[request.param]  # fmt: skip


def test_what_is_put_comes_back(place: str) -> None:
    store = open_store(place)
    assert list(store.list()) == []
    assert store.get(entry().key) is None
    entries = [*many(9), Entry.of_text("rule", "r", "rule r\n  A [m]\n  A = A\n")]
    for e in entries:
        store.put(e)
    again = open_store(place)  # as another process would
    for found in (store, again):
        assert found.get(entries[0].key) == entries[0]
        assert [e.text for e in found.list()] == sorted((e.text for e in entries), key=_key)
        assert {e.key for e in found.list("rule")} == {entries[-1].key}
        assert len(list(found.list("program", entries[1]["program"]))) == 4
        assert list(found.list(program="0" * 64)) == []
    store.put(resealed(entries[0], key=entries[0].key, speedup="3"))
    assert again.get(entries[0].key) == resealed(entries[0], key=entries[0].key, speedup="3")
    store.delete(entries[0].key)
    store.delete(entries[0].key)
    assert again.get(entries[0].key) is None
    assert len(list(again.list())) == 9
    assert list(again.damaged()) == []


def _key(text: str) -> str:
    return text.split("\nkey ")[1][:64]


def damage(place: str) -> Callable[[str, bytes], None]:
    """Puts bytes in the place of an entry, behind the store's back."""
    store: Any = open_store(place)
    if place.startswith("sqlite:"):

        def put(key: str, data: bytes) -> None:
            with store._open() as db:
                db.execute("INSERT OR REPLACE INTO entries VALUES (?, '', ?)", (key, data))
    elif place.startswith("redis:"):

        def put(key: str, data: bytes) -> None:
            store._redis.set("tessera:entry:" + key, data)
    elif "://" in place:

        def put(key: str, data: bytes) -> None:
            store._fs.pipe_file(store._path(key), data)
    else:

        def put(key: str, data: bytes) -> None:
            store.path(key).parent.mkdir(exist_ok=True)
            store.path(key).write_bytes(data)

    return put  # fmt: skip


def test_lists_of_redis_are_passed_over(redis: str) -> None:
    store: Any = open_store(redis)
    store._redis.flushdb()
    sound = many(1)[0]
    store.put(sound)
    store._redis.lpush("tessera:entry:" + "0" * 64, "no string")
    with pytest.warns(RuntimeWarning, match="0000"):
        assert list(store.list()) == [sound]
    assert [key for key, _ in store.damaged()] == ["0" * 64]
    store.delete("0" * 64)
    assert list(store.damaged()) == []


def test_what_is_damaged_is_passed_over_with_one_warning(place: str) -> None:
    store = open_store(place)
    sound, other = many(2)
    store.put(sound)
    put = damage(place)
    put("0" * 64, b"no entry")
    put("1" * 64, b"\xff\xfe")
    put("2" * 64, other.text.encode())  # under another key than its own
    put("3" * 64, sound.text.encode()[:-1])
    for found in (store, open_store(place)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert list(found.list()) == [sound]
            assert found.get("0" * 64) is None
        assert len(caught) == 1
        wrong = dict(found.damaged())
        assert sorted(wrong) == [digit * 64 for digit in "0123"]
        assert "another key" in wrong["2" * 64]
    store.delete("0" * 64)
    assert len(list(store.damaged())) == 3


def test_keys_are_no_paths(place: str) -> None:
    for key in ("../x", "", "0" * 63, "0" * 64 + "/"):
        with pytest.raises(BadInputError):
            open_store(place).get(key)


def test_a_folder_reads_entries_only(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "s")
    good = entry()
    store.put(good)
    assert store.path(good.key).read_text() == good.text
    assert [p.name for p in store.path(good.key).parent.iterdir()] == [good.key + ".entry"]
    (tmp_path / "s" / "README.md").write_text("ours")
    (tmp_path / "s" / ".git").mkdir()
    store.path("a" * 64).parent.mkdir(exist_ok=True)
    os.mkfifo(store.path("a" * 64))  # it would never end
    store.path("b" * 64).parent.mkdir(exist_ok=True)
    store.path("b" * 64).symlink_to("/dev/zero")
    store.path("c" * 64).parent.mkdir(exist_ok=True)
    store.path("c" * 64).mkdir()
    with pytest.warns(RuntimeWarning, match="passed over"):
        assert list(store.list()) == [good]
    assert [store.get(letter * 64) for letter in "abc"] == [None] * 3
    assert {key[0] for key, _ in store.damaged()} == set("abc")


WRITER = """
import sys
from pathlib import Path
from store_entries import many
from tessera.store.stores import open_store
store, seed = open_store(sys.argv[1]), int(sys.argv[2])
mine = many(40)
for n in range(40):
    e = mine[(n * 7 + seed) % 40]
    store.put(e)
    assert store.get(e.key) == e
"""


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_writers_side_by_side(tmp_path: Path, kind: str) -> None:
    place = str(tmp_path / "f") if kind == "folder" else f"sqlite:{tmp_path / 'x'}"
    paths = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": paths}
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, place, str(seed)], env=env)
        for seed in range(3)
    ]
    store = open_store(place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing half-written is ever seen
        while any(w.poll() is None for w in writers):
            assert list(store.damaged()) == []
    assert [w.returncode for w in writers] == [0, 0, 0]
    assert len(list(store.list())) == 40
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix not in (".entry", "")]
    assert left == []


def test_a_union_reads_in_order(tmp_path: Path) -> None:
    first, second = FolderStore(tmp_path / "a"), FolderStore(tmp_path / "b")
    one, two = many(2)
    second.put(one)
    second.put(two)
    first.put(resealed(one, key=one.key, speedup="9"))
    found = {e.key: (name, e) for name, e in Union([first, second]).list()}
    assert found[one.key][0] == first.name
    assert found[one.key][1]["speedup"] == "9"
    assert found[two.key] == (second.name, two)


def test_a_store_that_cannot_be_reached_is_passed_over(tmp_path: Path) -> None:
    pytest.importorskip("redis", reason="redis is not installed for Python")
    gone = open_store("redis://user:secret@127.0.0.1:1/0")
    with pytest.raises(IoError, match="the store redis://127") as told:
        gone.get(entry().key)
    assert "secret" not in str(told.value)
    folder = FolderStore(tmp_path)
    folder.put(entry())
    with pytest.warns(RuntimeWarning, match="passed over"):
        assert list(Union([gone, folder]).list()) == [(folder.name, entry())]


def test_what_cannot_be_opened_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with pytest.raises(IoError, match="the store nobody://x"):
        open_store("nobody://x")
    monkeypatch.setenv("TESSERA_STORES", f"nobody://y,{tmp_path}")
    with pytest.warns(RuntimeWarning, match="passed over: the store nobody://y"):
        assert str(tmp_path) in [store.name for store in configured().stores]


@pytest.mark.parametrize("kind", ["", "sqlite:"])
def test_what_is_not_there_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{kind}{tmp_path / 'store'}"
    monkeypatch.setenv("TESSERA_STORES", place)
    with pytest.warns(RuntimeWarning, match=f"passed over: the store {place} is not there"):
        assert place not in [store.name for store in configured().stores]
    open_store(place).put(entry())
    assert (open_store(place).name, entry()) in configured().list()


def test_databases_of_redis_are_numbers() -> None:
    with pytest.raises(BadInputError, match="localhost/abc: a database of Redis is a number"):
        open_store("redis://me:secret@localhost/abc")


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    for place in (str(tmp_path / "f"), f"sqlite:{tmp_path / 'x'}"):
        store = open_store(place)
        assert list(store.list()) == []
        assert list(store.damaged()) == []
        assert store.get("0" * 64) is None
    assert list(tmp_path.iterdir()) == []


def test_what_others_change_is_seen(place: str) -> None:
    store, other = open_store(place), open_store(place)
    one, two = many(2)
    store.put(one)
    program = one["program"]
    assert list(store.list(program=two["program"])) == []
    assert list(store.list(program=program)) == [one]
    other.put(two)
    other.delete(one.key)
    assert list(store.list(program=two["program"])) == [two]
    assert list(store.list(program=program)) == []


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", []),
        ("/a/b:c", ["/a/b", "c"]),
        ("sqlite:/a/x", ["sqlite:/a/x"]),
        ("x.sqlite:y", ["sqlite:x.sqlite", "y"]),
        (".tessera/store,memory://team", [".tessera/store", "memory://team"]),
        ("file:/a, b", ["/a", "b"]),
    ],
)
def test_stores_are_named_by_the_environment(
    value: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSERA_STORES", value)
    monkeypatch.setattr("tessera.store.stores.shipped", lambda name: None)
    monkeypatch.setattr("tessera.store.stores._opened", open_store)  # there or not
    assert [store.name for store in configured().stores] == names


def test_of_two_entries_with_one_key_the_newer_stands() -> None:
    a, b = entry(made="2026-01-02"), entry(made="2026-01-03")
    assert newer(a, b) == newer(b, a) == b
    c = entry(speedup="5")
    assert newer(a, c) == newer(c, a)


def test_sound_entries_are_read_and_print_the_same() -> None:
    good = entry()
    assert Entry.parse(good.text) == good
    assert _core.program_hash(_core.parse(good["original"])) == good["program"]
    assert good.key == _core.entry_key(_core.parse(good["original"]), Options().fields())["key"]
    with pytest.raises(RefusedError, match="no kind"):
        resealed(good, kind="pickle").checked()


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e400", "fast", "1,5"])
def test_numbers_are_numbers(value: str) -> None:
    assert entry(speedup="1e9").checked().number("speedup") == 1e9
    with pytest.raises(RefusedError, match="'speedup' is no number from 0 on"):
        entry(speedup=value).checked()
