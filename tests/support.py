"""Run one op alone: PyTorch source and ONNX emitted from it, both against a reference that the caller gives."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from nnspec.backends.onnx.builder import ELEMENT, OPSETS, Builder, Store, Val
from nnspec.backends.onnx.recipes import RECIPES
from nnspec.backends.torch.printer import Printer, Scope
from nnspec.backends.torch.source import Py, source
from nnspec.ir.dimension import Dim
from nnspec.ir.graph import TensorType
from nnspec.ops.base import OpFault, Site
from onnx import helper, numpy_helper

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


def fault(op, arrays, dims=None):
    """The OpFault that the op's shape rule raises."""
    with pytest.raises(OpFault) as caught:
        infer(op, arrays, dims)
    return caught.value


def run_torch(op, arrays, dims=None, *, used=None, module=False, dtype="float32"):
    """Print the op's PyTorch source, execute it on tensors, return numpy outputs by name; `module` runs its nn.Module."""
    run, tensors = torch_function(op, arrays, dims, used=used, module=module, dtype=dtype)
    values = zip(op.outputs(), run(*tensors.values()), strict=True)
    return {name: v.detach().numpy() for name, v in values if used is None or name in used}


def torch_function(op, arrays, dims=None, *, used=None, module=False, dtype="float32", optional=()):
    """The op's printed PyTorch as a function that returns all outputs, and the tensors to call it with, by name.

    It may be called with None for `optional` ports.
    """
    given, types, outputs = infer(op, arrays, dims)
    types |= {port: replace(types[port], optional=True) for port in optional}
    scope, helpers = Scope(indent=1), {}
    names, env = {}, {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math}
    owned = op.parameters() if module else {}

    def enter(port, array, type):
        name = scope.name(port)
        env[name] = tensor_of(array, dtype)
        scope.tensors.append((Py(name), type))
        return Py(name)

    for port, array in given.items():
        if port in owned:
            continue
        if isinstance(array, list | tuple):
            names[port] = [enter(f"{port}_{i}", a, t) for i, (a, t) in enumerate(zip(array, types[port], strict=True))]
        else:
            names[port] = None if array is None else enter(port, array, types[port])
    t = Printer(scope, helpers, "node", types, outputs, frozenset(op.outputs() if used is None else used), Py("self.node"))

    class Self:
        training = False

    if module:
        Self.node = eval(source(op.module(t, types)), dict(env)).to(getattr(torch, dtype))
        Self.node.load_state_dict({name: tensor_of(given[name], dtype) for name in owned})
        call = getattr(op, "module_call", lambda t, owner, **ports: owner(*(p for p in ports.values() if p is not None)))
        result = call(t, t.owner, **names)
    else:
        result = op.torch(t, **names)
    results = result if isinstance(result, tuple) else (result,)
    params = [n for n in env if n not in ("torch", "nn", "F", "math")]
    body = "\n".join(scope.lines) + f"\n    return {source(tuple(results))}\n"
    text = "\n\n".join(helpers.values()) + f"\n\ndef run(self, {', '.join(params)}):\n{body}"
    namespace = {k: env[k] for k in ("torch", "nn", "F", "math")}
    exec(compile(text, "<op>", "exec"), namespace)
    return partial(namespace["run"], Self()), {n: env[n] for n in params}


def tensor_of(array, dtype):
    made = torch.from_numpy(np.array(array))
    return made.to(getattr(torch, dtype)) if made.is_floating_point() else made


def run_onnx(op, arrays, dims=None, target="ort-cpu", *, dtype="float32", form=None, used=None, recipes=True):
    """Emit the op in its first legal form (or the named one) and run it with ONNX Runtime on the CPU."""
    model, feeds, names = onnx_model(op, arrays, dims, target, dtype=dtype, form=form, used=used, recipes=recipes)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(None, feeds), strict=True))


def onnx_model(op, arrays, dims=None, target="ort-cpu", *, dtype="float32", form=None, used=None, recipes=True):
    """The op alone as an ONNX model, its feeds, and the names of the outputs in use; its parameters are inputs too, and recipes
    made from them are initializers (`recipes=False`: as if they were computed in the graph)."""
    given, types, outputs = infer(op, arrays, dims)
    g = Builder(Store(target, dtype))
    g.path, g.inputs, g.outputs, g.used = "node", types, outputs, frozenset(op.outputs() if used is None else used)
    feeds, inputs, names, sizes = {}, [], {}, {}

    def enter(port, array, type):
        value = np.array(array)
        kind = dtype if type.dtype == "float" else type.dtype
        g.store.names.add(port)
        feeds[port] = value.astype(np.float32 if kind == "float32" else kind) if type.dtype == "float" else value
        axes = [d.value if d.value is not None else str(d) for d in type.shape]
        inputs.append(helper.make_tensor_value_info(port, ELEMENT[kind], axes))
        for axis, dim in enumerate(type.shape):
            if dim.value is None:
                sizes.setdefault(dim, (port, axis))
        return Val(port, parameter=f"node.{port}" if recipes and port in op.parameters() else None)

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
        if name not in g.used:
            continue
        kind = dtype if type.dtype == "float" else type.dtype
        g.nodes.append(helper.make_node("Identity", [value.name], [f"out:{name}"]))
        axes = [str(d) if d.value is None else d.value for d in type.shape]
        ends.append(helper.make_tensor_value_info(f"out:{name}", ELEMENT[kind], axes))
    for recipe in g.store.recipes.values():
        made = RECIPES[recipe.kind]([feeds[path.removeprefix("node.")] for path in recipe.parameters], dict(recipe.settings))
        assert made.shape == recipe.shape, f"{recipe.name}: made {made.shape}, said {recipe.shape}"
        g.store.initializers.append(numpy_helper.from_array(made, recipe.name))
    graph = helper.make_graph(g.nodes, "op", inputs, ends, g.store.initializers)
    domains = {n.domain for n in g.nodes} - {""}
    assert target != "portable" or not domains, f"portable takes ai.onnx only, not {domains}"
    opsets = [helper.make_opsetid("", OPSETS[target]), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    return model, feeds, [n for n in op.outputs() if n in g.used]


def polynomial(g, dim):
    total = None
    for monomial, coefficient in dim.terms:
        term = g.ints(coefficient)
        for atom in monomial:
            factor = g.size(Dim.symbol(atom)) if isinstance(atom, str) else g.op("Div", g.size(atom.inner), g.ints(atom.by))
            term = g.op("Mul", term, factor)
        total = term if total is None else g.op("Add", total, term)
    return total


def check_op(op, arrays, reference, dims=None, targets=("ort-cpu", "portable"), *, rtol=1e-5, atol=1e-6, used=None,
             module=False):
    """The op's PyTorch and ONNX results equal the reference: {output: array} (outputs it leaves out are not compared)."""
    got = {"torch": run_torch(op, arrays, dims, used=used)}
    got |= {target: run_onnx(op, arrays, dims, target, used=used) for target in targets}
    if module:
        got["module"] = run_torch(op, arrays, dims, used=used, module=True)
    _, _, types = infer(op, arrays, dims)
    for who, outputs in got.items():
        for name, want in reference.items():
            have = outputs[name]
            assert have.shape == want.shape, f"{who} {name}: shape {have.shape}, reference {want.shape}"
            assert have.dtype.kind == want.dtype.kind, f"{who} {name}: {have.dtype}, reference {want.dtype}"
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol, err_msg=f"{who} {op.name}.{name}")
    for name, type in zip(op.outputs(), types, strict=True):
        if used is not None and name not in used:
            continue
        for d, n in zip(type.shape, got["torch"][name].shape, strict=True):
            assert d.value is None or d.value == n, f"inferred {type} but torch gives {got['torch'][name].shape}"
