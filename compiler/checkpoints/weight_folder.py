"""Weights in several files: shards with an index, and folders as hubs and trainers leave them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..lang.diagnostic import Diagnostic, Diagnostics, diagnostic
from .weight_file import Stored, WeightFile, fail

INDEX = ".index.json"
PLAIN = (".safetensors", ".npz")
TORCH = (".pt", ".pth", ".bin")
PICKLES = (*TORCH, ".pickle", ".pkl", ".ckpt")
SUFFIXES = (*PLAIN, *TORCH)
EXPECTED = (f"expected {', '.join(SUFFIXES)}, an index of shards (*{INDEX}), or a folder with model.safetensors, with shards, or with "
            "exactly one .safetensors or .npz file")
CONVERT = ("where you trust the file, convert it once: "
           'safetensors.torch.save_file(torch.load(path, weights_only=True), "model.safetensors")',
           "hubs mostly keep a model.safetensors of the same weights: download that one")
_SHARD = re.compile(r"(.+)-(\d{5,})-of-(\d{5,})(\.\w+)")
# The names under which hubs keep the whole model.
_WHOLE = ("model.safetensors", f"model.safetensors{INDEX}")

Opener = Callable[[Path], WeightFile]


def open_folder(folder: Path, open_file: Opener) -> WeightFile:
    """The weights of a folder. Pickles beside them are passed over; a folder that holds nothing else is refused."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    whole = next((folder / name for name in _WHOLE if folder / name in files), None)
    if whole is not None:
        return open_file(whole)
    found = [p for p in files if p.suffix in PLAIN or p.name.endswith(tuple(s + INDEX for s in PLAIN))]
    parts = {p: m for p in found if (m := _SHARD.fullmatch(p.name))}
    whole_files = [p for p in found if p not in parts]
    sets = {(m[1], m[3], m[4]) for m in parts.values()}
    if len(whole_files) == 1 and all(whole_files[0].name == f"{stem}{suffix}{INDEX}" for stem, _, suffix in sets):
        return open_file(whole_files[0])
    if not found and (pickles := [p.name for p in files if p.suffix in PICKLES]):
        fail(f"`{folder}` holds its weights as pickles alone: {some(pickles)}",
             "expected model.safetensors; no pickle of a folder is opened", CONVERT)
    if whole_files or len(sets) != 1:
        held = f"several: {some([p.name for p in found])}" if found else "none"
        fail(f"`{folder}` should hold one weight file, it holds {held}", EXPECTED, "name the file itself" if found else ())
    stem, count, suffix = next(iter(sets))
    return _merged(folder, [folder / f"{stem}-{i:0{len(count)}}-of-{count}{suffix}" for i in range(1, int(count) + 1)], {}, [], open_file)


def open_index(path: Path, open_file: Opener) -> WeightFile:
    """The shards that an index names; everything wrong with the index and them is told at once."""
    try:
        places = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique)["weight_map"]
        if not isinstance(places, dict) or not places or not all(isinstance(s, str) for s in places.values()):
            raise ValueError("its `weight_map` is no object of tensors and files")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        fail(f"`{path}` is not an index of shards: {error!s}", 'expected {"weight_map": {tensor: file}}')
    problems = []
    outside = sorted({s for s in places.values() if not _beside(s)})
    if outside:
        problems.append(diagnostic("bad-weights", f"`{path}` is not an index of shards: {some(outside)} {_are(outside)}",
                                   note="expected the names of weight files in the folder of the index",
                                   help="an index reads nothing outside its folder: put the shards beside it"))
    inside = {tensor: shard for tensor, shard in places.items() if _beside(shard)}
    return _merged(path, [path.parent / shard for shard in sorted(set(inside.values()))], inside, problems, open_file)


def _beside(shard: str) -> bool:
    return Path(shard).name == shard and "\\" not in shard and Path(shard).suffix in SUFFIXES


def _are(names: Sequence[str]) -> str:
    return "is no weight file beside it" if len(names) == 1 else "are no weight files beside it"


def _merged(path: Path, shards: Sequence[Path], places: Mapping[str, str], problems: list[Diagnostic], open_file: Opener) -> WeightFile:
    """The tensors of all shards; `places` says in which file the index expects each."""
    missing = [s.name for s in shards if not s.is_file()]
    if missing:
        problems.append(diagnostic("bad-weights", f"`{path}` lacks {len(missing)} of {len(shards)} shards: {some(missing)}",
                                   note=f"expected them in `{shards[0].parent}`", help="download or copy the missing files"))
    files: list[WeightFile] = []
    tensors: dict[str, Stored] = {}
    homes: dict[str, str] = {}
    unread = set(missing)
    for shard in (s for s in shards if s.name not in unread):
        try:
            files.append(open_file(shard))
        except Diagnostics as error:
            problems += error.items
            unread.add(shard.name)
            continue
        problems += _twice(shard, [n for n in files[-1].names() if n in homes], homes)
        for name in files[-1].names():
            tensors[name] = files[-1].stored(name)
            homes.setdefault(name, shard.name)
    problems += _lost(path, {n: s for n, s in places.items() if s not in unread}, homes)

    def close() -> None:
        for file in files:
            file.close()

    if problems:
        close()
        raise Diagnostics(problems)
    return WeightFile(path, tensors, close)


def _twice(shard: Path, names: Sequence[str], homes: Mapping[str, str]) -> list[Diagnostic]:
    if not names:
        return []
    return [diagnostic("bad-weights", f"`{shard}` and `{homes[names[0]]}` both hold {some(names)}",
                       note="expected each tensor in one shard", help="remove the shards of another save")]


def _lost(path: Path, places: Mapping[str, str], homes: Mapping[str, str]) -> list[Diagnostic]:
    """What the index says of tensors that their shard does not hold."""
    lost = [n for n in places if n not in homes]
    moved = [n for n, shard in places.items() if n in homes and homes[n] != shard]
    note = "expected each tensor of the index in its shard"
    found = []
    if lost:
        found.append(diagnostic("bad-weights", f"no shard of `{path}` holds {some(lost)}", help="download or save the shards again", note=(
            note, *(f"`{places[n]}` should hold `{n}`" for n in lost[:4]))))
    if moved:
        found.append(diagnostic("bad-weights", f"`{path}` names another shard than the one that holds {some(moved)}", help=(
            "download or save the shards and their index again"), note=(
                note, *(f"`{n}` should be in `{places[n]}`, it is in `{homes[n]}`" for n in moved[:4]))))
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, for `object_pairs_hook`. Raises ValueError where a key is given twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [k for k, _ in pairs]
        raise ValueError(f"`{next(n for n in names if names.count(n) > 1)}` is given twice")
    return made


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    return ", ".join(f"`{n}`" for n in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
