import json

import pytest
from nnspec.runtime import ArtifactError, manifest
from nnspec.runtime.dimension import parse
from tiny import make_manifest


def changed(**changes) -> str:
    value = json.loads(manifest.encode(make_manifest()))
    for path, new in changes.items():
        *parents, last = path.split("__")
        place = value
        for key in parents:
            place = place[int(key) if key.isdigit() else key]
        if new is ...:
            del place[last]
        else:
            place[last] = new
    return json.dumps(value)


def problems(text: str) -> list[str]:
    with pytest.raises(ArtifactError) as caught:
        manifest.decode(text)
    assert {item.code for item in caught.value.items} == {"bad-artifact"}
    return [item.headline for item in caught.value.items]


def test_round_trip_is_exact_and_deterministic(tmp_path):
    x = manifest.Input("x", "bfloat16", ("B", "16*H", 3), {"H": 5}, {"B": 1}, optional=True)
    made = make_manifest(inputs=(x,), certificate=None)
    path = manifest.write(tmp_path, made)
    first = path.read_bytes()
    assert manifest.read(tmp_path) == made == manifest.read(path)
    assert manifest.write(path, made).read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_every_problem_is_reported_at_once():
    found = problems(changed(form="half", parameters=-3, dtypo="float32", model__sha256="abc", inputs__0__shape=["B", "S*T"],
                             inputs__1__dtype=..., inputs__2__lenght_of="S", outputs__0__shape=[True], data=7))
    text = "\n".join(found)
    assert len(found) == 9
    for part in ("`form` should be one of full", "`parameters` should be a number from 0, found -3", "did you mean `dtype`?",
                 "`model.sha256` should be 64 hexadecimal digits", "`S*T` is not of the form", "`inputs[1].dtype` is missing",
                 "did you mean `length_of`?", "`outputs[0].shape` should be", "`data` should be a list"):
        assert part in text


@pytest.mark.parametrize("name", ["/etc/passwd", "../model.onnx", "sub/model.onnx", "C:model.onnx", "..", "a\\b"])
def test_files_lie_in_the_folder(name):
    assert "in the same folder" in problems(changed(model__file=name))[0]


def test_names_of_inputs_and_dimensions_must_agree():
    found = problems(changed(inputs__1__name="tokens", inputs__2__length_of="Z", inputs__1__ids_below=4))
    assert any("names `tokens` twice" in p for p in found)
    assert any("dimension `Z`, which no input has" in p for p in found)
    assert any("only integers are ids or lengths" in p for p in found)


@pytest.mark.parametrize(("text", "part"), [
    ("{", "is not a manifest"), ("[]", "version 1"), ('{"nnspec": 2}', "version 1"), ('{"nnspec": true}', "version 1"),
    ('{"nnspec": 1, "nnspec": 1}', "duplicate key `nnspec`"), ('{"nnspec": NaN}', "NaN is not JSON"),
    ("[" * 100_000, "is not a manifest"),
])
def test_other_json_is_refused(text, part):
    assert part in problems(text)[0]


def test_a_missing_object_is_one_problem():
    assert problems(changed(model=...)) == ["`manifest.json`: `model` is missing"]
    assert len(problems(changed(model=3))) == 1


def test_missing_folder_and_manifest(tmp_path):
    with pytest.raises(ArtifactError, match="no folder"):
        manifest.read(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match=r"holds no `manifest.json`"):
        manifest.read(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"x")
    with pytest.raises(ArtifactError, match="is a file, not an artifact folder"):
        manifest.read(tmp_path / "model.onnx")


def test_an_invalid_manifest_is_not_written(tmp_path):
    with pytest.raises(ArtifactError, match="`name` is empty"):
        manifest.write(tmp_path, make_manifest(name=""))
    with pytest.raises(ArtifactError, match="cannot be written"):
        manifest.write(tmp_path, make_manifest(certificate={"worst": float("nan")}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("entry", "length", "size"), [
    ("S", 5, 5), ("16*H", 48, 3), ("16*H", 47, None), ("S + 1", 6, 5), ("S + 1", 0, None), ("16*H+1", 33, 2), ("S - 1", 4, 5),
    ("3*T_2", 0, 0),
])
def test_dimensions_are_solved(entry, length, size):
    dimension = parse(entry)
    assert dimension.solve(length) == size
    if size is not None:
        assert dimension.size({dimension.name: size}) == length


@pytest.mark.parametrize("entry", ["S*T", "S**2", "", "2S", "S*2", "0*S", "S + T", "S //2", "1.5", "S\n"])
def test_other_dimensions_are_refused(entry):
    with pytest.raises(ValueError, match="is not of the form"):
        parse(entry)
