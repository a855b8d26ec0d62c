"""Where float16 overflows: a failing case again, with every intermediate value in sight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..runtime import Artifact
from ..runtime.compare import LARGEST_HALF
from ..runtime.origin import Node, of

FLOATS = (np.float16, np.float32)


def first_overflow(artifact: Artifact, arrays: Mapping[str, np.ndarray]) -> str | None:
    """The first node, in words, that makes infinities or NaN out of ordinary numbers; None where all values are finite.

    The values are those of the graph as it was emitted: ONNX Runtime's own fusions are off, and each is rounded to its dtype. Loops
    and branches are one node, and a weight that is not finite is no overflow. Raises what ONNX Runtime raises.
    """
    import onnx

    path = artifact.folder / artifact.manifest.model.file
    model = onnx.load(path, load_external_data=False)
    given = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if not t.external_data and t.data_type != 16}
    feeds = artifact.feeds(arrays)
    values = {**given, **feeds, **_run(model, str(artifact.folder), feeds)}
    later: Node | None = None
    for node in model.graph.node:
        wrong = [name for name in node.output if not _finite(values.get(name))]
        if wrong:
            # What was infinite before, or a mask's largest number, is no new overflow.
            if all(_ordinary(values.get(name)) for name in node.input):
                return _told(of(node), values, wrong[0], node.input)
            later = later or of(node)
    return f"{later.op} of {later.text} is the first with values that are not finite" if later else None


def _run(model: Any, folder: str, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Every value of the main graph."""
    import onnxruntime
    from onnx import ValueInfoProto

    names = [name for node in model.graph.node for name in node.output if name]
    kept = {o.name for o in model.graph.output}
    model.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in kept)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _finite(value: Any) -> bool:
    return not _float(value) or bool(np.isfinite(value).all())


def _ordinary(value: Any) -> bool:
    return not _float(value) or bool((np.abs(value) < LARGEST_HALF).all())


def _float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype in FLOATS


def _told(node: Node, values: Mapping[str, Any], wrong: str, inputs: Any) -> str:
    value = values[wrong]
    at = tuple(int(i) for i in np.argwhere(~np.isfinite(value))[0])
    largest = max((float(np.abs(values[x]).max(initial=0)) for x in inputs if _float(values.get(x))), default=0.0)
    return (f"{node.op} of {node.text} is the first to overflow float16: {value[at]!s} at {list(at)}, from numbers of at most "
            f"{largest:.4g}; float16 ends at 65504")
