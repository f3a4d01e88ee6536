"""The pass over one graph: match everything, then replace, then drop what nothing uses any more."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from .._soc import restricted
from . import _ema_adamw, _matmul, _norm_quant, _report
from ._graph import Refused, aten, convert, dtype_of, is_call, is_tensor, line_of, value_of


def fuse(graph: Graph, accept: frozenset[str], matmul: bool, always: bool) -> None:
    """Replaces the operators' arithmetic in a graph of ATen operators, and reports."""
    _report.current.graphs += 1
    if restricted():
        reason = "a product profile is set, and plain code is not bound to what a product accepts"
        _report.current.misses.append(_report.Miss("", reason, "anyfuse.soc"))
        return
    _fuse_steps(graph, accept, always)
    order = {node: i for i, node in enumerate(graph.nodes)}
    _fuse_norms(graph, accept, always, order)
    if matmul:
        _fuse_matmuls(graph, always)
    graph.eliminate_dead_code()
    graph.lint()


def _on_cpu(node: Node) -> bool:
    return is_tensor(node) and value_of(node).device.type == "cpu"


def _size(node: Node) -> str:
    return " x ".join(map(str, value_of(node).shape))


def _miss(operator: str, node: Node, reason: str) -> None:
    _report.current.misses.append(_report.Miss(operator, reason, line_of(node)))


def _fuse_norms(graph: Graph, accept: frozenset[str], always: bool, order: dict[Node, int]) -> None:
    found = []
    for node in graph.nodes:
        if is_call(node, convert) and _on_cpu(node) and dtype_of(node) == torch.int8:
            try:
                match = _match_norm(node, accept)
                if match is not None and not always and not _norm_quant.pays(match[1]):
                    raise Refused(f"{_size(match[1].x1)} values are too few to win by a call (always=True)")
            except Refused as reason:
                _miss(_norm_quant.NAME, node, str(reason))
                continue
            if match is not None:
                found.append(match)
        elif is_call(node, aten.round.default) and _on_cpu(node) and _norm_quant.rounds_rows_for_no_codes(node):
            _miss(_norm_quant.NAME, node, "the codes are not stored in int8, as the operator's are")
    if not always:
        shared = [_norm_quant.is_used_elsewhere(norm, found) for _, norm in found]
        for (quantization, _), also in zip(found, shared, strict=True):
            if also:
                text = "the norm is computed unquantized as well, so that a call saves nothing (always=True)"
                _miss(_norm_quant.NAME, quantization.codes, text)
        found = [match for match, also in zip(found, shared, strict=True) if not also]
    calls = _norm_quant.replace(graph, found, order)
    graph.eliminate_dead_code()
    left = set(graph.nodes)
    report = _report.current
    if calls:
        report.fused[_norm_quant.NAME] += len(calls)
    report.quantizations += len(found)
    for members in calls:
        report.kept += any(found[i][1].product in left for i in members)
        report.accepted.update({name for i in members for name in found[i][0].walk.differences})


def _match_norm(node: Node, accept: frozenset[str]) -> tuple[_norm_quant.Quantization, _norm_quant.Norm] | None:
    quantization = _norm_quant.match_quantization(node)
    if quantization is None:
        return None
    norm = _norm_quant.match_norm(quantization.value, quantization.walk, accept)
    if norm is None:
        raise Refused("what is quantized is no RMSNorm over the last dimension")
    for name, text in quantization.walk.differences.items():
        if name not in accept:
            raise Refused(text)
    return quantization, norm


def _fuse_steps(graph: Graph, accept: frozenset[str], always: bool) -> None:
    def refuse(node: Node, reason: str) -> None:
        _miss(_ema_adamw.NAME, node, reason)

    _ema_adamw.share_scalars(graph)
    order = {node: i for i, node in enumerate(graph.nodes)}
    found = []
    for step in _ema_adamw.match_steps(graph, refuse):
        unwanted = [text for name, text in step.differences.items() if name not in accept]
        if unwanted:
            refuse(step.values[0], unwanted[0])
        elif _on_cpu(step.grad):
            found.append(step)
    for steps in _ema_adamw.calls(found, order):
        if always or _ema_adamw.pays(steps):
            _ema_adamw.replace(graph, steps, order)
            _report.current.fused[_ema_adamw.NAME] += 1
            _report.current.accepted.update({name for step in steps for name in step.differences})
        else:
            refuse(steps[0].values[0], f"{len(steps)} tensors are too small to win by a call (always=True)")


def _fuse_matmuls(graph: Graph, always: bool) -> None:
    for node in list(graph.nodes):
        if is_call(node, aten._int_mm.default, aten.mm.default) and _on_cpu(node) and dtype_of(node) == torch.int32:
            _fuse_matmul(graph, node, always)


def _fuse_matmul(graph: Graph, node: Node, always: bool) -> None:
    try:
        match = _matmul.match_matmul(node)
        if match is not None and not always and not _matmul.pays(match):
            raise Refused(
                f"{_size(match.rows)} rows and {_size(match.weight)} weights: inductor's own is as fast (always=True)"
            )
    except Refused as reason:
        _miss(_matmul.NAME, node, str(reason))
        return
    if match is not None:
        _matmul.replace(graph, match)
        _report.current.fused[_matmul.NAME] += 1
