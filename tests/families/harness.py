"""Hold an imported checkpoint against the model of `transformers` that it was saved from.

A family's test makes a `Family` (class, tiny config, kind of inputs) and calls `check` for each config that takes another way
through the spec, and `perturb` once: it changes every key of the config, one at a time, and asks that the imported spec computes
what the reference then computes, or refuses.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import nnspec
import numpy as np
import torch
import transformers
import zoo
from nnspec.foreign.folder import harmless, opened
from nnspec.ir.text import identity_hash
from nnspec.lang.diagnostic import Diagnostics, Sink
from nnspec.lang.tree import Tree, plain
from nnspec.library import BLOCKS
from nnspec.stages.check import check
from nnspec.stages.compose import compose
from nnspec.stages.parse import load
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion

RELATIVE = 1e-4                          # of the largest number of the reference's output
Arrays = dict[str, np.ndarray]
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "relu2", "silu", "swish", "tanh", "sigmoid",
               "mish")
TRIED: dict[type, Callable[[Any], tuple]] = {
    bool: lambda v: (not v,), int: lambda v: (2 * v, v + 1, max(v // 2, 1)), float: lambda v: (1.5 * v + 0.01,),
    str: lambda v: ("other",), list: lambda v: (v[::-1],), dict: lambda v: (), type(None): lambda v: (True, 3, 0.7)}


@dataclass(frozen=True)
class Case:
    """Inputs of ours, those of the reference, and which entries of an output count (a mask that its leading axes have)."""

    name: str
    ours: Arrays
    theirs: dict[str, torch.Tensor]
    valid: np.ndarray


def _tokens(rng: np.random.Generator, rows: int, steps: int, vocab: int) -> np.ndarray:
    return rng.integers(3, vocab, (rows, steps))


def _inside(length: np.ndarray, steps: int) -> np.ndarray:
    return np.arange(steps) < length[:, None]


def decoder(vocab: int) -> Iterator[Case]:
    """tokens alone; right padding by `length`; left padding by `keep`, where positions count what is kept."""
    rng = np.random.default_rng(7)
    for rows, steps in ((1, 1), (1, 7), (3, 11)):
        tokens = _tokens(rng, rows, steps, vocab)
        yield Case(f"{rows} x {steps}", {"tokens": tokens}, {"input_ids": torch.tensor(tokens)}, np.ones((rows, steps), bool))
    tokens, length = _tokens(rng, 3, 9, vocab), np.array([9, 4, 1])
    mask = _inside(length, 9)
    theirs = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask).long()}
    yield Case("right padding", {"tokens": tokens, "length": length}, theirs, mask)
    mask = mask[:, ::-1].copy()
    places = torch.tensor((mask.cumsum(1) - 1).clip(0))
    theirs = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask).long(), "position_ids": places}
    yield Case("left padding", {"tokens": tokens, "keep": mask}, theirs, mask)


def encoder(vocab: int, segments: int = 0) -> Iterator[Case]:
    """tokens, with `segments` kinds of token_type_ids; right padding by `length`."""
    rng = np.random.default_rng(8)
    for rows, steps, length in ((1, 1, None), (1, 7, None), (3, 11, None), (3, 9, np.array([9, 4, 1]))):
        tokens = _tokens(rng, rows, steps, vocab)
        ours: Arrays = {"tokens": tokens}
        theirs = {"input_ids": torch.tensor(tokens)}
        if segments and steps > 1:                               # left out, they are all 0
            ours["segments"] = rng.integers(0, segments, tokens.shape)
            theirs["token_type_ids"] = torch.tensor(ours["segments"])
        mask = np.ones(tokens.shape, bool)
        if length is not None:
            ours["length"], mask = length, _inside(length, steps)
            theirs["attention_mask"] = torch.tensor(mask).long()
        yield Case(f"{rows} x {steps}{'' if length is None else ', right padding'}", ours, theirs, mask)


def encoder_decoder(vocab: int) -> Iterator[Case]:
    """source and target tokens; both with right padding."""
    rng = np.random.default_rng(9)
    for rows, steps, out, padded in ((1, 7, 1, False), (3, 11, 5, False), (3, 9, 6, True)):
        source, target = _tokens(rng, rows, steps, vocab), _tokens(rng, rows, out, vocab)
        ours: Arrays = {"source": source, "target": target}
        theirs = {"input_ids": torch.tensor(source), "decoder_input_ids": torch.tensor(target)}
        mask = np.ones(target.shape, bool)
        if padded:
            ours |= {"source_length": np.array([9, 4, 1]), "target_length": np.array([2, 6, 1])}
            mask = _inside(ours["target_length"], out)
            theirs |= {"attention_mask": torch.tensor(_inside(ours["source_length"], steps)).long(),
                       "decoder_attention_mask": torch.tensor(mask).long()}
        yield Case(f"{rows} x {steps} to {out}{', right padding' if padded else ''}", ours, theirs, mask)


@dataclass(frozen=True)
class Family:
    """A class of `transformers` at tiny sizes.

    `config` are the keys of its config; `cases` makes the inputs out of the vocabulary's size; `outputs` are attributes of the
    reference's output by our outputs' names. `library` names the spec that must be picked, or `family` is a file. `call` runs the
    reference where its own call does not do.
    """

    model: str
    config: Mapping[str, Any]
    cases: Callable[[int], Iterator[Case]] = decoder
    outputs: Mapping[str, str] = field(default_factory=lambda: {"logits": "logits"})
    vocab: str = "vocab_size"
    family: Path | None = None
    call: Callable[[torch.nn.Module, dict[str, torch.Tensor]], Any] | None = None
    prepare: Callable[[torch.nn.Module], None] = lambda theirs: None            # after its weights were drawn

    def but(self, model: str | None = None, outputs: Mapping[str, str] | None = None, **changes: Any) -> Family:
        """The family with other keys of its config, or of another class."""
        return replace(self, model=model or self.model, outputs=outputs or self.outputs, config={**self.config, **changes})

    @cached_property
    def raw(self) -> dict[str, Any]:
        """The config.json, with every key that the class has."""
        made = getattr(transformers, self.model).config_class(**self.config)
        said = json.loads(json.dumps(made.to_dict()))
        return {**said, "architectures": [self.model]}

    def theirs(self, raw: Mapping[str, Any]) -> torch.nn.Module:
        """The reference for a config.json, with the same random weights whenever the shapes are the same."""
        cls = getattr(transformers, self.model)
        config = cls.config_class.from_dict(copy.deepcopy(dict(raw)))
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        made = zoo.stir(cls(config).float())
        with torch.no_grad():
            self.prepare(made)
        made.tie_weights()
        return made

    def save(self, folder: Path, raw: Mapping[str, Any], theirs: torch.nn.Module) -> None:
        """A folder as a hub has it: the names of public files; a tied tensor is there once."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(raw, indent=2, sort_keys=True))
        state, seen = {}, set()
        for name, value in revert_weight_conversion(theirs, theirs.state_dict()).items():
            if value.data_ptr() not in seen:
                state[name] = value.contiguous()
            seen.add(value.data_ptr())
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    def expected(self, theirs: torch.nn.Module, case: Case) -> Arrays:
        takes = inspect.signature(theirs.forward).parameters
        given = {k: v for k, v in case.theirs.items() if k in takes}
        if "use_cache" in takes:
            given["use_cache"] = False
        with torch.no_grad():
            out = self.call(theirs, given) if self.call else theirs(**given)
        return {ours: getattr(out, name).numpy() for ours, name in self.outputs.items()}

    def ours(self, saved: Path, case: Case) -> Arrays:
        model = nnspec.load(saved, family=self.family)
        return run(model, model.module(weights=saved), case)

    def drawn(self, raw: Mapping[str, Any]) -> list[Case]:
        return list(self.cases(int(raw[self.vocab])))

    # checks

    def check(self, folder: Path, onnx: bool = True, without: tuple[str, ...] = ()) -> nnspec.Model:
        """Save a model, import the folder, and compare PyTorch and ONNX Runtime with the reference on every case.

        `without` are keys that config.json then lacks, as older ones do.
        """
        theirs = self.theirs(self.raw)
        saved = folder / "saved"
        theirs.save_pretrained(saved)
        if without:
            said = json.loads((saved / "config.json").read_text())
            (saved / "config.json").write_text(json.dumps({k: v for k, v in said.items() if k not in without}))
        model = nnspec.load(saved, family=self.family)
        self.check_text(saved, folder, model)
        module = model.module(weights=saved)
        self.check_back(saved, folder, model)
        if onnx:
            model.export(folder / "onnx", weights=saved, certify="none")
            artifact = nnspec.runtime.open(folder / "onnx")
        for case in self.drawn(self.raw):
            want = self.expected(theirs, case)
            assert set(want) == set(dict(model.graph.root.outputs))
            agree(run(model, module, case), want, case, "PyTorch")
            if onnx:
                agree(artifact(**case.ours), want, case, "ONNX Runtime")
        return model

    def check_text(self, saved: Path, folder: Path, model: nnspec.Model) -> None:
        """The written spec is the same model, and holds no trace of the config."""
        written = folder / f"{saved.name}.yaml"
        written.write_text(nnspec.import_checkpoint(saved, self.family, written))
        again = nnspec.load(written)
        assert identity_hash(again.graph) == identity_hash(model.graph)
        assert "config:" not in written.read_text() and again.name == "saved" == model.name
        assert not again.warnings, again.warnings

    def check_back(self, saved: Path, folder: Path, model: nnspec.Model) -> None:
        """The weights go back under the names that they came from, bit for bit."""
        model.export_weights(saved, folder / "back.safetensors")
        given, back = load_file(saved / "model.safetensors"), load_file(folder / "back.safetensors")
        assert back.keys() == given.keys()
        assert all(back[n].dtype == given[n].dtype and back[n].equal(given[n]) for n in given)

    def perturb(self, folder: Path, values: Mapping[str, tuple] | None = None, skip: tuple[str, ...] = (),
                only: tuple[str, ...] = ()) -> dict[str, set[str]]:
        """Change each key of the config alone, to `values` or to others of its kind; ours must compute what the reference then
        computes, or refuse. Leaves out the keys of `skip`, or all but those of `only`. Returns which keys were `changed` (in the
        outputs), `same`, and `refused`.
        """
        base = self.theirs(self.raw)
        case = self.drawn(self.raw)[-1]
        before = self.expected(base, case)
        self.save(folder / "base", self.raw, base)
        plain_tree, plain_got = fitted(folder / "base", self.family), self.ours(folder / "base", case)
        kinds: dict[str, set[str]] = {"changed": set(), "same": set(), "refused": set()}
        skip = (*skip, "model_type", "architectures")
        tries = [(key, value) for key, old in leaves(self.raw)
                 if key not in skip and (not only or key in only) for value in tried(key, old, values or {})]
        for n, (key, value) in enumerate(tries):
            raw = changed(self.raw, key, value)
            try:
                theirs = self.theirs(raw)
                want = self.expected(theirs, case)
            except Exception:                                    # noqa: BLE001  the reference refuses, whatever it raises
                continue
            moved = any(want[k].shape != before[k].shape or not np.allclose(want[k], before[k], rtol=1e-5, atol=1e-6) for k in want)
            self.save(folder / str(n), raw, theirs)
            try:
                unread = fitted(folder / str(n), self.family) == plain_tree
                got = plain_got if unread else self.ours(folder / str(n), case)
            except Diagnostics as refused:
                assert key in str(refused) or key.split(".")[-1] in str(refused) or moved, (key, value, str(refused))
                kinds["refused"].add(key)
                continue
            agree(got, want, case, f"{key} = {value!r}")
            kinds["changed" if moved else "same"].add(key)
        assert not kinds["changed"] & set(harmless()), kinds["changed"] & set(harmless())
        return kinds


def fitted(saved: Path, family: Path | None) -> object:
    """The spec's tree for a folder; equal trees are equal models."""
    sink = Sink()
    foreign = opened(saved, family)
    made = foreign.fit(composed(foreign.family), "saved", sink)
    sink.check()
    return plain(made.tree), [(x.headline, x.value) for x in made.later]


@cache
def composed(family: Path) -> Tree:
    sink = Sink()
    source, tree = load(family)
    return check(compose(source, tree, load, sink, BLOCKS).tree, sink)


def run(model: nnspec.Model, module: torch.nn.Module, case: Case) -> Arrays:
    with torch.no_grad():
        out = module(**{k: torch.tensor(v) for k, v in case.ours.items()})
    named = out if isinstance(out, dict) else {model.graph.root.outputs[0][0]: out}
    return {k: v.numpy() for k, v in named.items()}


def agree(got: Mapping[str, np.ndarray], want: Arrays, case: Case, who: str) -> None:
    """Equal where the case counts, to RELATIVE of the reference's largest number."""
    for name, right in want.items():
        have = np.asarray(got[name])
        assert have.shape == right.shape, f"{who}, {case.name}: `{name}` is {have.shape}, the reference {right.shape}"
        if right.shape[:case.valid.ndim] == case.valid.shape:
            have, right = have[case.valid], right[case.valid]
        off = np.abs(have - right).max() / np.abs(right).max()
        assert off <= RELATIVE, f"{who}, {case.name}: `{name}` is off by {off:.2g} of its largest number"


def leaves(raw: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, dict) and value and not key.endswith(("2label", "2id")):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def tried(key: str, old: Any, values: Mapping[str, tuple]) -> tuple:
    if key in values:
        return values[key]
    if isinstance(old, str) and ("act" in key.rpartition(".")[2].split("_") or "activation" in key):
        return tuple(a for a in ACTIVATIONS if a != old)
    return tuple(v for v in TRIED[type(old)](old) if v != old)


def changed(raw: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(dict(raw))
    *above, last = key.split(".")
    inner = made
    for part in above:
        inner = inner[part]
    inner[last] = value
    return made
