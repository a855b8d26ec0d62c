import os

import pytest
from nnspec.lang.diagnostic import Diagnostics
from nnspec.stages.parse import MAX_BYTES, read_source


def refused(path):
    with pytest.raises(Diagnostics) as found:
        read_source(path)
    assert len(found.value.items) == 1
    return found.value.items[0]


def test_read_source(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: caf\xc3\xa9\r\n")
    source = read_source(path)
    assert (source.name, source.text) == (str(path), "name: café\r\n")


def test_missing_file_names_a_neighbour(tmp_path):
    (tmp_path / "encoder.yaml").write_text("a: 1")
    found = refused(tmp_path / "encodr.yaml")
    assert (found.code, found.helps) == ("file-not-found", ("did you mean `encoder.yaml`?",))
    assert refused(tmp_path / "no" / "such.yaml").code == "file-not-found"


def test_folder_is_not_a_file(tmp_path):
    assert refused(tmp_path).code == "file-not-readable"


@pytest.mark.parametrize("name", ["a\0b", "a/" * 5000])
def test_impossible_paths(name):
    assert refused(name).code == "file-not-readable"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_no_permission(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    assert refused(path).code == "file-not-readable"


def test_not_utf8(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    found = refused(path)
    assert found.code == "file-not-utf8" and "line 2" in found.notes[0] and "0xe9" in found.notes[0]
    path.write_bytes("a: 1\n".encode("utf-16"))
    assert "UTF-16" in refused(path).notes[0]


def test_too_large(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_source(path).text) == MAX_BYTES
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert refused(path).code == "file-too-large"
