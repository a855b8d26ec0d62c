"""Tensors run where they are; what is wrong about them is told without looking at their numbers."""

import nnspec
import numpy as np
import pytest
from nnspec import runtime

onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

SPEC = """
nnspec: 1
name: shared
inputs: {ids: "int64[B, S]", scale: "float[B, 4]", keep: "optional bool[B, S]"}
graph:
  embed: {op: embedding, in: ids, entries: 23, width: 8}
  heads: {op: rearrange, in: embed, as: "b s (h d) -> b h s d", h: 2}
  attend: {op: attention, query: heads, key: heads, value: heads, keep: keep}
  joined: {op: rearrange, in: attend, as: "b h s d -> b s (h d)"}
  twice: {op: add, in: [scale, scale]}
outputs: {joined: joined, twice: twice}
"""


@pytest.fixture(scope="module", params=["float32", "float16"])
def artifact(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("shared")
    (where / "spec.yaml").write_text(SPEC.lstrip())
    nnspec.load(where / "spec.yaml").export(where / "out", init=0, certify="none", dtype=request.param)
    return runtime.open(where / "out", threads=1)


def tensors(artifact):
    made = torch.Generator().manual_seed(1)
    return {"ids": torch.randint(0, 23, (4, 5), generator=made)[1:], "keep": (torch.rand(5, 5, generator=made) < 0.7)[2:],
            "scale": torch.randn(3, 4, generator=made).to(getattr(torch, artifact.manifest.dtype))}


@pytest.mark.parametrize("left_out", [(), ("keep",)])
def test_tensors_give_what_arrays_give(artifact, left_out):
    given = {k: v for k, v in tensors(artifact).items() if k not in left_out}
    got = artifact.on_device(**given)
    want = artifact(**{k: v.numpy() for k, v in given.items()})
    assert [*got] == ["joined", "twice"] and all(isinstance(v, onnxruntime.OrtValue) for v in got.values())
    for name, value in got.items():
        np.testing.assert_array_equal(torch.from_dlpack(value).numpy(), want[name])
    again = artifact.on_device(**given, **({"keep": None} if left_out else {}))
    np.testing.assert_array_equal(again["joined"].numpy(), want["joined"])


def test_results_go_into_the_next_run(artifact):
    given = tensors(artifact)
    scale = artifact.on_device(**given)["twice"]
    got = artifact.on_device(**(given | {"scale": scale}))["twice"]
    np.testing.assert_array_equal(got.numpy(), given["scale"].numpy() * 4)


@pytest.mark.parametrize(("change", "part"), [
    ({"ids": torch.ones(3, 5, dtype=torch.int32)}, "input `ids` is int32"),
    ({"ids": torch.ones(3, 6, dtype=torch.int64)}, "disagree about `S`: 6 and 5"),
    ({"ids": torch.ones(3, dtype=torch.int64)}, "input `ids` has 1 axis, expected 2"),
    ({"ids": torch.ones(5, 3, dtype=torch.int64).T}, "input `ids` is no tensor that can be shared"),
    ({"scale": torch.ones(3, 4, requires_grad=True)}, "input `scale` is no tensor that can be shared"),
    ({"ids": [[1, 2]]}, "input `ids` is no tensor that can be shared"),
    ({"idz": torch.ones(3, 5, dtype=torch.int64)}, "the model has no input `idz`"),
    ({"ids": None}, "input `ids` is missing"),
])
def test_what_is_wrong_is_told(artifact, change, part):
    with pytest.raises(runtime.ArtifactError) as found:
        artifact.on_device(**(tensors(artifact) | change))
    assert any(part in item.headline for item in found.value.items), [i.headline for i in found.value.items]
    assert {item.code for item in found.value.items} == {"bad-inputs"}
