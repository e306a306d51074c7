"""PyTorch's decompositions: of whole graphs, and of single operators that graphs keep."""

from __future__ import annotations

import functools

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from tessera.frontends.torch.call import only_moves
from tessera.frontends.torch.importer import handler_of
from tessera.types import Function, Value

_ATEN = torch.ops.aten
# Graphs keep them: their own kernels lay results out (or make no view), draw numbers or refuse
# arguments otherwise than what they are decomposed to, which is only what programs are made of.
_WHOLE = {
    _ATEN.bernoulli, _ATEN.nll_loss_forward, _ATEN.nll_loss2d_forward, _ATEN.roll,
    _ATEN.channel_shuffle, _ATEN.native_channel_shuffle, _ATEN.select_scatter,
    _ATEN.log_sigmoid_forward, _ATEN.logaddexp, _ATEN.xlogy, _ATEN.special_xlog1py,
    _ATEN.heaviside, _ATEN.native_dropout_backward, _ATEN.max_unpool2d, _ATEN.grid_sampler_2d,
    _ATEN.upsample_nearest1d, _ATEN._upsample_nearest_exact1d, _ATEN.adaptive_avg_pool1d,
    _ATEN._native_batch_norm_legit, _ATEN._native_batch_norm_legit_functional, _ATEN.ldexp,
    _ATEN.col2im, _ATEN.special_log_ndtr, _ATEN.embedding_dense_backward, _ATEN.index_fill,
    _ATEN.native_batch_norm_backward, _ATEN.glu_backward, _ATEN.mse_loss_backward,
    _ATEN.smooth_l1_loss_backward, _ATEN.huber_loss_backward, _ATEN._unsafe_view,
}  # fmt: skip
# Not of ATen's core either.
_FURTHER = {_ATEN.elu, _ATEN.linalg_vector_norm, _ATEN.var_mean, _ATEN.narrow_copy, _ATEN.dist}


@functools.cache
def decompositions() -> dict[OpOverload, Function]:
    """ATen to its core, but for what is imported as a whole."""
    wanted = {getattr(p, name) for p in _WHOLE | _FURTHER for name in p.overloads()}
    further = {name: decomposition_table[name] for name in wanted & decomposition_table.keys()}
    return {name: made for name, made in {**core_aten_decompositions(), **further}.items()
            if handler_of(name) is None or only_moves(name)}  # fmt: skip


def graph_decompositions() -> dict[OpOverload, Function]:
    """Those that leave strides, random numbers and errors as they are."""
    return {name: made for name, made in decompositions().items()
            if name.overloadpacket not in _WHOLE}  # fmt: skip


def note_insides(gm: GraphModule) -> None:
    """Gives operators that nothing imports the graph of what they are decomposed to, by the thread
    that traces: in `meta["inside"]`, its inputs the nodes that they take."""
    for node in gm.graph.nodes:
        if node.target in decompositions() and handler_of(node.target) is None:
            node.meta["inside"] = _inside(node)


def _inside(node: Node) -> GraphModule:
    def run(*operands: torch.Tensor) -> Value:
        given = dict(zip(node.all_input_nodes, operands, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), given.__getitem__)
        made = decompositions()[node.target](*args, **kwargs)
        return list(made) if isinstance(made, tuple) else made  # also of named ones

    examples = [n.meta["val"] for n in node.all_input_nodes]
    with detect_fake_mode(examples), torch.no_grad():
        return make_fx(run, decomposition_table=decompositions())(*examples)
