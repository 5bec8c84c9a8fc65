from types import SimpleNamespace

import pooch
import pytest


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine without any data: an empty cache, and a network that holds what ``web`` says."""
    cache, web = tmp_path / "cache", {}

    def retrieve(url, known_hash, *, fname, path):
        if url not in web:
            raise ConnectionError("no such host")
        path.mkdir(exist_ok=True)
        (path / fname).write_bytes(web[url])
        return str(path / fname)

    monkeypatch.delenv("NESTAX_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: cache)
    monkeypatch.setattr(pooch, "retrieve", retrieve)
    return SimpleNamespace(cache=cache, web=web)
