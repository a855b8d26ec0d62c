"""Run one op alone: PyTorch source and ONNX emitted from it, both against a reference that the caller gives."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper

from nnspec.backends.onnx.builder import ELEMENT, OPSETS, Builder, Store, Val
from nnspec.backends.torch.printer import Printer, Scope
from nnspec.backends.torch.source import Py, source
from nnspec.ir.dimension import Dim
from nnspec.ir.graph import TensorType
from nnspec.ops.base import Site

DTYPES = {np.dtype("float32"): "float", np.dtype("int64"): "int64", np.dtype("bool"): "bool"}


def types_of(arrays, dims=None):
    """TensorTypes of numpy inputs; `dims` names free axes per port: {"in": ("B", "S", 6)}."""
    out = {}
    for port, given in arrays.items():
        if given is None:
            out[port] = None
        elif isinstance(given, list | tuple):
            out[port] = tuple(_type(a, (dims or {}).get(f"{port}.{i}")) for i, a in enumerate(given))
        else:
            out[port] = _type(given, (dims or {}).get(port))
    return out


def _type(array, named):
    shape = [Dim.symbol(n) if isinstance(n, str) else Dim.const(n) for n in (named or array.shape)]
    return TensorType(DTYPES[array.dtype], tuple(shape))


def infer(op, arrays, dims=None):
    """Types of every port (parameters that are not given stay None) and of the outputs."""
    given = {port: arrays.get(port) for port in op.ports()} | {p: arrays.get(p) for p in op.parameters()}
    types = types_of(given, dims)
    return given, types, op.infer(types)


def run_torch(op, arrays, dims=None, module_scope=None):
    """Print the op's PyTorch source, execute it on tensors, return numpy outputs by name."""
    given, types, outputs = infer(op, arrays, dims)
    scope, helpers = Scope(indent=1), {}
    names, env = {}, {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math}

    def enter(port, array, type):
        name = scope.name(port)
        env[name] = torch.from_numpy(np.array(array))
        scope.tensors.append((Py(name), type))
        return Py(name)

    for port, array in given.items():
        if isinstance(array, list | tuple):
            names[port] = [enter(f"{port}_{i}", a, t) for i, (a, t) in enumerate(zip(array, types[port], strict=True))]
        else:
            names[port] = None if array is None else enter(port, array, types[port])
    t = Printer(scope, helpers, "node", types, outputs, frozenset(op.outputs()), Py("self"))
    result = op.torch(t, **names)
    results = result if isinstance(result, tuple) else (result,)
    params = [n for n in env if n not in ("torch", "nn", "F", "math")]
    body = "\n".join(scope.lines) + f"\n    return {source(tuple(results))}\n"
    text = "\n\n".join(helpers.values()) + f"\n\ndef run(self, {', '.join(params)}):\n{body}"
    namespace = {k: env[k] for k in ("torch", "nn", "F", "math")}
    exec(compile(text, "<op>", "exec"), namespace)

    class Self:
        training = False

    values = namespace["run"](Self(), *(env[n] for n in params))
    return dict(zip(op.outputs(), (v.detach().numpy() for v in values), strict=True))


def run_onnx(op, arrays, dims=None, target="ort-cpu", dtype="float32", form=None):
    """Emit the op in its first legal form (or the named one) and run it with ONNX Runtime on the CPU."""
    given, types, outputs = infer(op, arrays, dims)
    g = Builder(Store(target, dtype))
    g.path, g.inputs, g.outputs, g.used = "node", types, outputs, frozenset(op.outputs())
    feeds, inputs, names, sizes = {}, [], {}, {}

    def enter(port, array, type):
        value = np.array(array)
        kind = dtype if type.dtype == "float" else type.dtype
        g.store.names.add(port)
        feeds[port] = value.astype(np.float32 if kind == "float32" else kind) if type.dtype == "float" else value
        inputs.append(helper.make_tensor_value_info(port, ELEMENT[kind], [d.value if d.value is not None else str(d) for d in type.shape]))
        for axis, dim in enumerate(type.shape):
            if dim.value is None:
                sizes.setdefault(dim, (port, axis))
        return Val(port)

    for port, array in given.items():
        if isinstance(array, list | tuple):
            names[port] = [enter(f"{port}_{i}", a, t) for i, (a, t) in enumerate(zip(array, types[port], strict=True))]
        else:
            names[port] = None if array is None else enter(port, array, types[port])

    def find(dim):
        if dim in sizes:
            port, axis = sizes[dim]
            return g.op("Shape", Val(port), start=axis, end=axis + 1)
        return polynomial(g, dim)

    g.find_size = lambda dim: g.once(("size", dim), lambda: find(dim))
    site = Site(target, dtype, types, outputs, g.used)
    legal = [f for f in op.forms() if target in f.targets and f.when(op, site) is None and form in (None, f.name)]
    assert legal, f"no legal form of {op.name} for {target}: {[(f.name, f.when(op, site)) for f in op.forms()]}"
    result = legal[0].emit(op, g, **names)
    results = result if isinstance(result, tuple) else (result,)
    ends = []
    for name, type, value in zip(op.outputs(), outputs, results, strict=True):
        kind = dtype if type.dtype == "float" else type.dtype
        g.nodes.append(helper.make_node("Identity", [value.name], [f"out:{name}"]))
        axes = [str(d) if d.value is None else d.value for d in type.shape]
        ends.append(helper.make_tensor_value_info(f"out:{name}", ELEMENT[kind], axes))
    graph = helper.make_graph(g.nodes, "op", inputs, ends, g.store.initializers)
    domains = {n.domain for n in g.nodes} - {""}
    assert target != "portable" or not domains, f"portable takes ai.onnx only, not {domains}"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS[target]), *(helper.make_opsetid(d, 1) for d in domains)],
                              ir_version=10)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(op.outputs(), session.run(None, feeds), strict=True))


def polynomial(g, dim):
    total = None
    for monomial, coefficient in dim.terms:
        term = g.ints(coefficient)
        for atom in monomial:
            factor = g.size(Dim.symbol(atom)) if isinstance(atom, str) else g.op("Div", g.size(atom.inner), g.ints(atom.by))
            term = g.op("Mul", term, factor)
        total = term if total is None else g.op("Add", total, term)
    return total


def check_op(op, arrays, reference, dims=None, targets=("ort-cpu", "portable"), rtol=1e-5, atol=1e-6):
    """The op's PyTorch and ONNX results equal the reference: {output: array} (outputs it leaves out are not compared)."""
    got = {"torch": run_torch(op, arrays, dims)} | {target: run_onnx(op, arrays, dims, target) for target in targets}
    _, _, types = infer(op, arrays, dims)
    for who, outputs in got.items():
        for name, want in reference.items():
            have = outputs[name]
            assert have.shape == want.shape, f"{who} {name}: shape {have.shape}, reference {want.shape}"
            assert have.dtype.kind == want.dtype.kind, f"{who} {name}: {have.dtype}, reference {want.dtype}"
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, err_msg=f"{who} {op.name}.{name}")
    for name, type in zip(op.outputs(), types, strict=True):
        for d, n in zip(type.shape, got["torch"][name].shape, strict=True):
            assert d.value is None or d.value == n, f"inferred {type} but torch gives {got['torch'][name].shape}"
