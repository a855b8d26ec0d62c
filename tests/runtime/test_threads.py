"""Sixteen threads share one open artifact, each with inputs and shapes of its own; they get what one thread gets."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import zoo
from nnspec import runtime

pytest.importorskip("onnxruntime")
THREADS, CALLS = 16, 6
NAMES = ["gpt2", "transformer-base", "additive-seq2seq", "hard/mamba"]


def drawn(name, thread):
    """The inputs of a thread's calls: other batch sizes and lengths in every call, and none like another thread's."""
    batch, *others = zoo.free(name)
    made = []
    for k in range(CALLS):
        sizes = {batch: 1 + (thread + k) % 4} | {n: 2 + (7 * thread + 5 * k + 3 * j) % 29 for j, n in enumerate(others)}
        made.append(zoo.draw(name, sizes, seed=100 * thread + k))
    return made


@pytest.fixture(scope="module", params=NAMES)
def shared(request, tmp_path_factory):
    """Name, folder, inputs of each thread, and the outputs that one thread alone gets for them."""
    name, folder = request.param, tmp_path_factory.mktemp("shared")
    zoo.model(name).export(folder, weights=zoo.stirred(name), certify="none")
    inputs = [drawn(name, thread) for thread in range(THREADS)]
    alone = runtime.open(folder, threads=1)
    return name, folder, inputs, [[alone(**arrays) for arrays in calls] for calls in inputs]


def together(work):
    """work(thread) of all threads, which start at the same moment."""
    start = Barrier(THREADS)

    def begin(thread):
        start.wait(timeout=60)
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def equal(got, want):
    for ours, theirs in zip(got, want, strict=True):
        assert set(ours) == set(theirs)
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key], value, err_msg=key)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_an_artifact(shared, threads):
    name, folder, inputs, want = shared
    artifact = runtime.open(folder, threads=threads)
    for got, right in zip(together(lambda t: [artifact(**arrays) for arrays in inputs[t]]), want, strict=True):
        if threads == 1:
            equal(got, right)
        for ours, theirs in zip(got, right, strict=True):       # more threads an operator may sum in another order
            zoo.close(ours, theirs, 1e-5, 1e-6, name)


def test_what_one_thread_gets_wrong_does_not_reach_another(shared):
    _, folder, inputs, want = shared
    artifact = runtime.open(folder, threads=1)
    ids = next(x.name for x in artifact.inputs if x.dtype == "int64" and x.length_of is None)

    def work(thread):
        if thread % 2 == 0:
            return [artifact(**arrays) for arrays in inputs[thread]]
        for arrays in inputs[thread]:
            with pytest.raises(runtime.ArtifactErrors) as found:
                artifact(**arrays | {ids: np.full_like(arrays[ids], 10**6)})
            assert [item.code for item in found.value.items] == ["bad-inputs"]
        return None

    for thread, got in enumerate(together(work)):
        assert (got is None) == bool(thread % 2)
        if got is not None:
            equal(got, want[thread])
