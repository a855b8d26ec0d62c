"""Functions that emitted files bring along for control forms."""

MIXTURE = '''
def mixture(experts, x, weights, indices, width):
    """Sum of the chosen experts' outputs times their weights.

    An expert sees only the rows routed to it. x [*b, d]; weights, indices [*b, k] -> [*b, width]
    """
    rows, weights, indices = (t.reshape(-1, t.shape[-1]) for t in (x, weights, indices))
    out = rows.new_zeros(rows.shape[0], width)
    for i, expert in enumerate(experts):
        chosen = indices == i
        if torch.compiler.is_compiling():  # a graph has no number of rows that depends on data
            share = torch.where(chosen, weights, 0.0).sum(-1, keepdim=True)
            out = out + torch.where(chosen.any(-1, keepdim=True), expert(rows) * share, 0.0)
        else:
            row, choice = torch.where(chosen)
            out = out.index_add(0, row, expert(rows[row]) * weights[row, choice].unsqueeze(-1))
    return out.reshape(*x.shape[:-1], width)
'''

SCAN = '''
def scan(step, carries, inputs, dim, backward=False, dtypes=None):
    """Run `step(carries, inputs) -> carries, outputs` along axis `dim` of the inputs.

    Gives the last carries, and the outputs stacked on that axis. `dtypes` has the dtypes of outputs
    that are not float, None for the others.
    """
    if torch.compiler.is_compiling():  # one step in the graph, for any number of steps
        return scan_in_graph(step, carries, inputs, dim, backward, dtypes)
    if inputs[0].shape[dim] == 0:  # a step on zeros tells what no steps would stack
        outputs = step(carries, tuple(x.new_zeros(x.shape[:dim] + x.shape[dim + 1:]) for x in inputs))[1]
        return carries, tuple(y.unsqueeze(dim).narrow(dim, 0, 0) for y in outputs)
    steps = list(zip(*(x.unbind(dim) for x in inputs)))
    results = []
    for now in reversed(steps) if backward else steps:
        carries, outputs = step(carries, now)
        results.append(outputs)
    if backward:
        results.reverse()
    return carries, tuple(torch.stack(outputs, dim) for outputs in zip(*results))
'''

SCAN_IN_GRAPH = '''
def scan_in_graph(step, carries, inputs, dim, backward, dtypes):
    """`scan` by torch's operator.

    It wants a carry, results that share no memory, and to differentiate floats only.
    """
    from torch._higher_order_ops.scan import scan as scan_op

    training = torch.is_grad_enabled()
    kinds = [c.dtype for c in carries]

    def enter(x):  # counters and flags travel as float64, exact below 2**53
        x = x.double() if training and not x.is_floating_point() else x
        return x.clone(memory_format=torch.contiguous_format)

    def apart(state, now):
        after, outputs = step(tuple(c.to(kind) for c, kind in zip(state[1:], kinds)), now)
        return tuple(enter(c) for c in (state[0], *after)), tuple(enter(y) for y in outputs)

    start = tuple(enter(c) for c in (torch.zeros((), device=inputs[0].device), *carries))
    (_, *last), outputs = scan_op(apart, start, tuple(x.movedim(dim, 0) for x in inputs), reverse=backward)
    outputs = [y.movedim(0, dim) for y in outputs]
    if dtypes is not None:
        outputs = [y if kind is None else y.to(kind) for y, kind in zip(outputs, dtypes)]
    return tuple(c.to(kind) for c, kind in zip(last, kinds)), tuple(outputs)
'''
