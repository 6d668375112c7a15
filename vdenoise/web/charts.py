"""Curves and tables as inline SVG and HTML. Nothing is computed here but where a point is drawn.

Every word that comes from a file or a client goes through ``html.escape``.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence

from vdenoise.studio.compare import NOISY, Cell, family

COLOURS = ("#4f46e5", "#c2410c", "#047857", "#be185d", "#0369a1", "#854d0e")
GAMMA_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


def chart(
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str,
    y_title: str,
    ticks: Sequence[float],
    styles: Mapping[str, tuple[str, str]] | None = None,
) -> str:
    """Curves as inline SVG in the page's colours; the values of a single curve are written at its points.

    Args:
        series: points (x, y ≥ 0) by name.
        x_title: under the axis.
        y_title: above the other.
        ticks: marks of the x axis.
        styles: colour and dashes by name; one colour after the other where it is None.
    """
    width, height, left, right, top, bottom = 460, 250, 42, 14, 26, 40
    styles = styles or {name: (colour, "") for name, colour in zip(series, COLOURS, strict=False)}
    highest = max((y for curve in series.values() for _, y in curve), default=1.0)
    step = _step(highest)
    peak = step * max(1, math.ceil(highest / step - 1e-9))
    low, high = min(ticks), max(ticks)

    def px(x: float) -> float:
        return left + (width - left - right) * ((x - low) / (high - low) if high > low else 0.5)

    def py(y: float) -> float:
        return height - bottom - (height - bottom - top) * y / peak

    parts = [f"<text x='4' y='14'>{html.escape(y_title)}</text>"]
    for i in range(round(peak / step) + 1):
        y = py(i * step)
        parts.append(f"<line class='grid' x1='{left}' x2='{width - right}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(f"<text x='{left - 6}' y='{y + 4:.1f}' text-anchor='end'>{i * step:.4g}</text>")
    for x in ticks:
        where = f"x='{px(x):.1f}' y='{height - bottom + 17}'"
        parts.append(f"<text {where} text-anchor='middle'>{x:.4g}</text>")
    centre = (left + width - right) / 2
    parts.append(f"<text x='{centre}' y='{height - 6}' text-anchor='middle'>{html.escape(x_title)}</text>")
    for name, curve in series.items():
        colour, dash = styles[name]
        line = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in curve)
        stroke = f"stroke='{colour}' stroke-width='2' stroke-dasharray='{dash}'"
        parts.append(f"<polyline points='{line}' fill='none' {stroke}/>")
        for x, y in curve:
            dot = f"cx='{px(x):.1f}' cy='{py(y):.1f}'"
            parts.append(f"<circle {dot} r='3' fill='{colour}'><title>{y:.2f}</title></circle>")
            if len(series) == 1:
                at = f"x='{px(x):.1f}' y='{py(y) - 8:.1f}'"
                parts.append(f"<text {at} text-anchor='middle'>{y:.3g}</text>")
    said = "; ".join(
        f"{name}: " + ", ".join(f"{x:.4g}: {y:.3g}" for x, y in curve) for name, curve in series.items()
    )
    label = html.escape(f"{y_title} by {x_title}. {said}")
    size = f"viewBox='0 0 {width} {height}'"
    svg = f"<svg class='chart' {size} role='img' aria-label='{label}'>{''.join(parts)}</svg>"
    return svg if len(series) == 1 else svg + _legend(series, styles)


def _legend(names: Iterable[str], styles: Mapping[str, tuple[str, str]]) -> str:
    swatch = "<svg width='26' height='8' aria-hidden='true'><line x2='26' y1='4' y2='4' {}/></svg>"
    parts = []
    for name in names:
        colour, dash = styles[name]
        stroke = f"stroke='{colour}' stroke-width='2' stroke-dasharray='{dash}'"
        parts.append(f"<span>{swatch.format(stroke)} {html.escape(name)}</span>")
    return f"<div class='chips'>{''.join(parts)}</div>"


def _step(peak: float) -> float:
    """Distance of grid lines: 1, 2 or 5 times a power of ten, so that four or so fit."""
    rough = max(peak, 1e-6) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough)


def comparison_html(cells: Sequence[Cell]) -> str:
    """Curves and table of RMSE over γ: with the constraint solid, without it dashed in the same colour."""
    names = list(dict.fromkeys(cell.model for cell in cells))
    stems = list(dict.fromkeys(family(name)[0] for name in names if name != NOISY))
    styles = {NOISY: ("#64748b", "2 4")}
    for name in names:
        if name != NOISY:
            stem, unconstrained = family(name)
            styles[name] = (COLOURS[stems.index(stem) % len(COLOURS)], "6 4" if unconstrained else "")
    series = {name: [(c.gamma, c.rmse) for c in cells if c.model == name] for name in names}
    highest = max(cell.gamma for cell in cells)
    ticks = [x for x in GAMMA_TICKS if x < highest] + [
        next((x for x in GAMMA_TICKS if x >= highest), highest)
    ]
    return chart(series, "γ", "RMSE (0–255)", ticks, styles) + comparison_table(cells)


def comparison_table(cells: Sequence[Cell]) -> str:
    """RMSE: a row per model, a column per γ; the best model of each column in bold."""
    names = list(dict.fromkeys(cell.model for cell in cells))
    values = {(cell.model, cell.gamma): cell.rmse for cell in cells}
    columns = {cell.gamma: cell.sigma for cell in cells}
    best = {
        g: min((v for (m, h), v in values.items() if h == g and m != NOISY), default=-1.0) for g in columns
    }
    head = "".join(
        f"<th scope='col'>{g:.4g}<small>σ {sigma:.1f}</small></th>" for g, sigma in columns.items()
    )
    rows = []
    for name in names:
        fields = []
        for g in columns:
            value = values.get((name, g))
            text = "" if value is None else f"{value:.2f}"
            bold = value is not None and name != NOISY and value == best[g]
            fields.append(f"<td>{f'<b>{text}</b>' if bold else text}</td>")
        rows.append(f"<tr><th scope='row'>{html.escape(name)}</th>{''.join(fields)}</tr>")
    return (
        "<div class='scroll' tabindex='0' role='region' aria-label='RMSE table'><table class='rmse'>"
        f"<thead><tr><th scope='col'>γ</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
