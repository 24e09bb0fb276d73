"""Each object that is read from DVC's local cache is verified."""

from pipeline.project.revisions.files import MAX_VERIFIED_BYTES, LocalCache


def test_cache_distinguishes_intact_damaged_and_missing_files(tmp_path):
    cases = {"d41d8cd98f00b204e9800998ecf8427e": b"", "0" * 32: b"x", "1" * 32: bytes(MAX_VERIFIED_BYTES + 1)}
    for md5, content in cases.items():
        (tmp_path / md5[:2]).mkdir()
        (tmp_path / md5[:2] / md5[2:]).write_bytes(content)
    cache = LocalCache(tmp_path)

    states = [(cache.is_intact(md5), cache.is_damaged(md5)) for md5 in (*cases, "f" * 32)]
    assert states == [(True, False), (False, True), (True, False), (False, False)]
    assert [cache.read(md5) for md5 in (*cases, "f" * 32)] == [b"", None, None, None]
