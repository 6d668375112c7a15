"""The app through a launched server: what programs can call, and what no client can do."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

import app
from vdenoise.video import open_video

from app_samples import clip_with_sound, edge_clip, running_app, tiny_checkpoint


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """An app with an untrained model, that takes clips of up to 5 s and 1 MB: its address and its folder."""
    model = tiny_checkpoint(tmp_path_factory.mktemp("models") / "tiny.pt")
    home = tmp_path_factory.mktemp("home")
    with running_app(home, "--model", str(model), "--max-mb", "1", "--max-seconds", "5") as app_running:
        yield app_running


@pytest.fixture(scope="module")
def address(running):
    return running[0]


@pytest.fixture(scope="module")
def folder(running):
    return running[1]


@pytest.fixture
def client(address, tmp_path):
    return Client(address, verbose=False, download_files=tmp_path / "results")


def test_programs_see_two_endpoints(client):
    info = client.view_api(return_format="dict", print_info=False)
    assert sorted(info["named_endpoints"]) == ["/denoise", "/look"]
    assert not info["unnamed_endpoints"]


def test_a_program_has_a_file_cleaned(client, tmp_path):
    source = clip_with_sound(tmp_path / "tone & <b>.mp4")
    facts = client.predict(handle_file(source), api_name="/look")
    assert (facts["frames"], facts["width"], facts["height"], facts["sound"]) == (40, 64, 48, True)
    job = client.submit(handle_file(source), "tiny", None, 25, api_name="/denoise")
    report, clean = job.result(timeout=60)
    assert report["done"] == report["total"] == 40
    assert not report["stopped"]
    assert report["rmse"][0] == pytest.approx(25, rel=0.05)
    assert clean.endswith("_clean.mp4")
    with open_video(clean) as reader:
        assert len(reader) == 40
        assert reader.info.audio == 1
        assert np.abs(reader[0].astype(float) - open_video(source)[0]).mean() < 30


def test_the_sigma_of_a_program_is_used(client, tmp_path):
    source = edge_clip(tmp_path / "edge.mp4", frames=6)
    results = [client.predict(handle_file(source), "tiny", s, None, api_name="/denoise") for s in (0, 60)]
    first, second = (open_video(clean)[3].astype(int) for _, clean in results)
    assert (first != second).mean() > 0.005
    assert results[0][0]["rmse"] is None  # there is no clean clip to compare with


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.mp4", b"", "empty"),
        ("archive.mp4", b"PK\x03\x04" + bytes(200), "can't be opened"),
        ("page.mp4", b"<html><script>alert(1)</script></html>", "can't be opened"),
        ("list.m3u8", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n", "list.m3u8"),
        ("list.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n", "list.mp4"),
        ("picture.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "picture.svg"),
    ],
)
def test_a_program_is_told_in_one_line_what_is_wrong(client, folder, tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(AppError) as refused:
        client.predict(handle_file(path), api_name="/look")
    said = str(refused.value)
    assert words in said
    assert "\n" not in said
    assert str(folder) not in said


def test_endpoints_have_the_limits_of_the_page(client, tmp_path):
    long = edge_clip(tmp_path / "long.mp4", frames=60)
    for endpoint, more in (("/look", []), ("/denoise", ["tiny", None, None])):
        with pytest.raises(AppError, match="at most 5 s"):
            client.predict(handle_file(long), *more, api_name=endpoint)
    large = tmp_path / "large.mp4"
    large.write_bytes(bytes(1_100_000))
    with pytest.raises(Exception, match=r"(?i)413|size|large"):  # gradio_client has no type of its own for it
        client.predict(handle_file(large), api_name="/look")


def test_only_models_that_are_offered_are_loaded(client, tmp_path):
    source = edge_clip(tmp_path / "edge.mp4", frames=2)
    with pytest.raises(AppError, match="/etc/passwd"):
        client.predict(handle_file(source), "/etc/passwd", None, None, api_name="/denoise")


def raw_look(address, path):
    """What ``/look`` answers to a path as it is sent, without a client that uploads it first."""
    body = json.dumps(
        {"data": [{"path": str(path), "meta": {"_type": "gradio.FileData"}, "orig_name": "a.mp4"}]}
    )
    post = urllib.request.Request(
        f"{address}gradio_api/call/look", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(post, timeout=10) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{address}gradio_api/call/look/{event}", timeout=30) as answer:
        return answer.read().decode()


def test_no_path_but_an_own_upload_is_read(address, folder, tmp_path):
    secret = edge_clip(tmp_path / "secret.mp4", frames=2)
    (folder / "link.mp4").symlink_to(secret)
    own = edge_clip(folder / "own.mp4", frames=2)
    assert "event: complete" in raw_look(address, own)
    for path in (
        secret,
        f"{folder}/../../{tmp_path.name}/secret.mp4",
        folder / "link.mp4",
        app.EXAMPLE,
        folder,
    ):
        said = raw_look(address, path)
        assert "event: error" in said
        assert "frames" not in said


def test_no_file_but_uploads_and_results_is_served(address, folder, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "link.txt").symlink_to(secret)
    paths = [
        secret,
        folder / "link.txt",
        f"{folder}/../{secret.parent.name}/secret.txt",
        app.EXAMPLE.parent.parent,
    ]
    for path in [*paths, app.EXAMPLE.parent.parent / "app.py", "/etc/passwd"]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}gradio_api/file={urllib.parse.quote(str(path))}", timeout=10)
        assert refused.value.code in (403, 404)
        refused.value.close()


def test_the_server_fetches_no_address_for_a_client(address):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        said = raw_look(address, f"http://127.0.0.1:{listener.getsockname()[1]}/clip.mp4")
        assert "event: error" in said
        assert "address" in said
        with pytest.raises(TimeoutError):
            listener.accept()


def test_one_clients_cancel_leaves_the_others_job(address, tmp_path):
    source = edge_clip(tmp_path / "edge.mp4", frames=40)
    mine, yours = (Client(address, verbose=False, download_files=tmp_path / name) for name in ("a", "b"))
    first = mine.submit(handle_file(source), "tiny", None, 10, api_name="/denoise")
    second = yours.submit(handle_file(source), "tiny", None, 10, api_name="/denoise")
    while not first.outputs():
        time.sleep(0.02)
    first.cancel()
    report, clean = second.result(timeout=60)
    assert report["done"] == 40
    assert clean


def test_nothing_runs_after_a_cancel(address, tmp_path):
    source = edge_clip(tmp_path / "edge.mp4", frames=45, width=256, height=192)
    client = Client(address, verbose=False, download_files=tmp_path / "results")
    job = client.submit(handle_file(source), "tiny", None, 10, api_name="/denoise")
    while not job.outputs():
        time.sleep(0.02)
    job.cancel()
    # The next in the queue is served only when the worker is free again.
    started = time.monotonic()
    small = edge_clip(tmp_path / "small.mp4", frames=2)
    client.predict(handle_file(small), "tiny", 10, None, api_name="/denoise")
    assert time.monotonic() - started < 30
