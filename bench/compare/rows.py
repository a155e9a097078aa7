"""Make the table's rows from the cells' results, each with the ideal that the bandwidths allow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bench.compare.cells import Cell
from bench.compare.job import Result
from bench.compare.page import Demand, Row, ideal_speed, row_of
from bench.compare.roofline import Bandwidths

if TYPE_CHECKING:
    from bench.compare.comparison import Comparison


def rows_of(comparison: Comparison, bandwidths: Bandwidths | None) -> list[Row]:
    """Return the table's rows, with the ideal that the bandwidths allow."""
    texts: dict[int, list[list[int]]] = {}  # by context: the texts of the first engine
    found = []
    for cell in comparison.grid:
        result = comparison.results.get(cell.key)
        if result is None:
            continue
        is_peer = cell.engine.kind == "peer"
        if not is_peer:
            texts.setdefault(cell.context, [run.tokens for run in result.each])
        ideal = None if bandwidths is None or is_peer else _ideal(comparison, cell, result, bandwidths)
        n_cpu_moe, again = comparison.n_cpu_moe.get(cell.key), comparison.again.get(cell.key)
        text = texts.get(cell.context)
        row = row_of(cell, result, n_cpu_moe, ideal, None if is_peer else text, again)
        if is_peer and text is not None:
            row = replace(row, same_text=_is_same(comparison, result, text))
        found.append(row)
    return found


def _is_same(comparison: Comparison, result: Result, tokens: list[list[int]]) -> bool:
    """Return True if a peer wrote the text of these tokens. Servers differ in blanks at its ends."""
    expected = [comparison.text_of(each).strip() for each in tokens]
    return [run.text.strip() for run in result.each] == expected


def _ideal(comparison: Comparison, cell: Cell, result: Result, bandwidths: Bandwidths) -> float | None:
    """Return the ideal speed, None where nobody counted the demand."""
    demand = _demand(comparison, cell)
    if demand is None:
        return None
    resident = demand.resident
    if cell.engine.kind != "spac":
        # Whole layers of experts are resident; without a GPU no layer is.
        first = len(comparison.sizes) if not comparison.on_gpu else comparison.n_cpu_moe.get(cell.key) or 0
        with_experts = [i for i, size in enumerate(comparison.sizes) if size]
        resident = demand.distinct * sum(i >= first for i in with_experts) / len(with_experts)
    draft = comparison.draft if cell.engine.speculates else None
    return ideal_speed(result.each, demand, resident, bandwidths, comparison.target, draft)


def _demand(comparison: Comparison, cell: Cell) -> Demand | None:
    """Return the cell's own demand, or that of spac on the same text in steps of the same kind."""
    own = Demand.of(comparison.results[cell.key].each)
    if own is not None or cell.engine.draft_length is not None:
        return own
    for other in comparison.grid:
        same = other.context == cell.context and other.engine.speculates == cell.engine.speculates
        if same and other.engine.governor is None and other.key in comparison.results:
            found = Demand.of(comparison.results[other.key].each)
            if found is not None:
                return found
    return None
