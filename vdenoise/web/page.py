"""What the app's page is made of, as text: cards, progress bar, curve, style. Nothing is computed here.

Every word that comes from a file or a client goes through ``html.escape``.
"""

from __future__ import annotations

import errno
import html
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from vdenoise.studio.compare import NOISY, Cell, family
from vdenoise.studio.filejob import Outcome, Progress
from vdenoise.studio.preview import Facts, Preview, scores

USE = "Use the example clip"

HEADER = """
<header>
<h1>vdenoise</h1>
<p>Cleans noisy video by a network whose every layer is one step of an optimiser, trained so that the error
falls from each layer to the next: that is <em>layer descent</em>, and the curve shows it on your clip.</p>
</header>
"""

GUIDE = """
<ol class="guide">
<li>Drop in a video, record one, or use the example clip.</li>
<li>Compare before and after on one second of it, and choose the strength.</li>
<li>Press <em>Denoise</em> for the whole of it: size, timing and sound stay as they are.</li>
</ol>
"""

BENCHMARK = """
<p>How much error each model leaves over the noise level γ, on the middle of a clean clip to which the noise
is added here. Choose a clip and press <em>Measure</em>.</p>
"""

CSS = """
.gradio-container {max-width: 1240px !important; margin: 0 auto !important}
header h1 {font-size: 1.7rem; margin: 0 0 .2rem}
header p {max-width: 62rem; margin: 0}
.chips {display: flex; flex-wrap: wrap; gap: 6px; margin-top: 4px}
.chips span {padding: 1px 9px; border-radius: 99px; background: var(--background-fill-secondary);
  border: 1px solid var(--border-color-primary); font-size: .85rem}
.cards {display: flex; flex-wrap: wrap; gap: 8px}
.cards > div {flex: 1 1 120px; padding: 8px 12px; border-radius: 8px;
  background: var(--background-fill-primary);
  border: 1px solid var(--border-color-primary)}
.cards b {display: block; font-size: 1.1rem; font-variant-numeric: tabular-nums}
.cards small {color: var(--body-text-color)}
.note {font-size: .85rem; margin: .4rem 0 0}
.bar {height: 12px; border-radius: 6px; background: var(--border-color-primary); overflow: hidden}
.bar > div {height: 100%; background: var(--color-accent); transition: width .5s}
.chart {width: 100%; height: auto; color: var(--body-text-color)}
.chart text {fill: currentColor; font: 12px system-ui, sans-serif}
.chart .grid {stroke: var(--border-color-primary)}
.guide {margin: 0; padding-left: 1.2rem; line-height: 1.9}
.scroll {overflow-x: auto}
.rmse {border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem}
.rmse th, .rmse td {padding: 4px 8px; text-align: right; border-bottom: 1px solid var(--border-color-primary)}
.rmse th:first-child {text-align: left}
.rmse small {display: block; font-weight: normal}
"""

# The two videos of a pair play, pause and seek together; the one before is mute, since both carry the sound.
SYNC = """
<script>
(() => {
  const pair = () => ['before', 'after'].map(id => document.querySelector('#' + id + ' video'));
  const other = video => { const [a, b] = pair(); return video === a ? b : video === b ? a : null; };
  const follow = (event, act) => document.addEventListener(event, e => {
    if (!(e.target instanceof HTMLVideoElement)) return;
    const o = other(e.target);
    if (o) act(e.target, o);
  }, true);
  const near = (v, o) => {
    if (Math.abs(v.currentTime - o.currentTime) > 0.08) o.currentTime = v.currentTime;
  };
  follow('play', (v, o) => {
    const [a] = pair();
    if (a) a.muted = true;
    near(v, o);
    if (o.paused) o.play();
  });
  follow('pause', (v, o) => { if (!o.paused && !v.ended) o.pause(); });
  follow('seeking', near);
  follow('ratechange', (v, o) => {
    if (o.playbackRate !== v.playbackRate) o.playbackRate = v.playbackRate;
  });
  follow('timeupdate', (v, o) => { if (v === pair()[1] && !v.paused) near(v, o); });
})();
</script>
"""

# What Gradio leaves out for those who use the keyboard or hear the page: radios of one question are a group,
# so that arrow keys move within it, and a picture that is a button has a name.
ACCESS = """
<script>
(() => {
  const mend = () => {
    for (const group of document.querySelectorAll('fieldset')) {
      const radios = group.querySelectorAll('input[type=radio]');
      for (const radio of radios) if (radio.name !== radios[0].name) radio.name = radios[0].name;
    }
    for (const button of document.querySelectorAll('button:not([aria-label])')) {
      if (button.title || button.innerText.trim() || !button.querySelector('img')) continue;
      const label = button.closest('.block')?.querySelector('label, [data-testid=block-label]');
      button.setAttribute('aria-label', label?.innerText.trim() || 'Picture');
    }
  };
  new MutationObserver(mend).observe(document.documentElement, {childList: true, subtree: true});
})();
</script>
"""


def one_line(error: BaseException) -> str:
    """An error for the page: one line, no folder of the server, no markup of the client."""
    if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
        return "The memory is not enough for frames of this size; scale the video down."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "The disk is full; free some space and try again."
    words = (os.path.basename(word) if word.startswith("/") else word for word in str(error).split())
    return html.escape(" ".join(words) or type(error).__name__, quote=False)


def facts_html(facts: Facts) -> str:
    """What a file is."""
    chips = [
        f"{facts.width} × {facts.height}",
        clock(facts.seconds),
        f"{facts.frames} frames, {facts.fps:.4g}/s",
        "grey" if facts.channels == 1 else "colour",
        "with sound" if facts.sound else "no sound",
        facts.codec,
        "no measurable noise" if facts.sigma < 0.5 else f"noise σ ≈ {facts.sigma:.1f}",
    ]
    inside = "".join(f"<span>{html.escape(chip)}</span>" for chip in chips)
    return f"<b>{html.escape(facts.name)}</b><div class='chips'>{inside}</div>"


def preview_html(second: Preview) -> str:
    """What was cleaned, and how well where that is known."""
    height, width = second.region[2:]
    found = [("Cleaned for", f"σ {second.sigma:.1f}")]
    if second.clean is None:
        found += [("True error", "unknown, no clean clip")]
    else:
        (e0, p0), (e1, p1) = scores(second.before, second.clean), scores(second.after, second.clean)
        found += [("RMSE (0–255)", f"{e0:.1f} → {e1:.1f}"), ("PSNR", f"{p0:.1f} → {p1:.1f} dB")]
    return cards(found) + note(
        f"{len(second.before)} frames from frame {second.start} on; the middle {width} × {height} pixels"
    )


def curve_html(second: Preview) -> str:
    """The per-layer curve, and what it is."""
    points = [(float(i), value) for i, value in enumerate(second.curve)]
    ticks = [x for x, _ in points]
    told = second.certificate
    if told is None:
        title = "True error after every layer"
        words = "RMSE against the clean clip on the previewed second; 0 is the noisy input."
        return f"<h3>{title}</h3>" + chart({"": points}, "layer", "0–255", ticks) + note(words)
    series, styles = {"estimate": points}, {"estimate": (COLOURS[0], "")}
    for name, bound in (("95% band, low", told.low), ("95% band, high", told.high)):
        if all(math.isfinite(value) for value in bound):
            series[name] = list(enumerate(bound))
            styles[name] = (COLOURS[0], "3 4")
    words = (
        f"The clean clip is unknown: this is Stein's estimate of the RMSE, from the noisy clip alone, at"
        f" σ {told.sigma:.1f}. Least after layer {told.best}."
    )
    return (
        "<h3>Estimated error after every layer</h3>"
        + chart(series, "layer", "0–255", ticks, styles)
        + note(words)
        + "".join(note(f"Caution: {text}") for text in told.failures)
    )


def progress_html(step: Progress) -> str:
    """A bar with frames, speed and time left."""
    if math.isinf(step.left):
        words = f"0 of {step.total} frames, at work on the first ones for {clock(step.seconds)}"
    else:
        left = f" · {clock(step.left)} left" if step.left else ""
        words = f"{step.done} of {step.total} frames · {step.rate:.1f} frames/s{left}"
    return (
        "<div class='bar' role='progressbar' aria-label='Denoising' aria-valuemin='0' aria-valuemax='100'"
        f" aria-valuenow='{100 * step.share:.0f}'>"
        f"<div style='width:{step.share:.1%}'></div></div>{note(words)}"
    )


def outcome_html(outcome: Outcome) -> str:
    """How a job ended."""
    step = outcome.progress
    found = [
        ("Stopped after" if outcome.stopped else "Done", f"{step.done} of {step.total} frames"),
        ("Time", clock(step.seconds)),
        ("Speed", f"{step.rate:.1f} frames/s"),
    ]
    if outcome.rmse and outcome.psnr:
        found += [
            ("RMSE (0–255)", "{:.1f} → {:.1f}".format(*outcome.rmse)),
            ("PSNR", "{:.1f} → {:.1f} dB".format(*outcome.psnr)),
        ]
    return cards(found)


def facts_dict(facts: Facts) -> dict[str, Any]:
    """What a file is, for programs."""
    return {field.name: getattr(facts, field.name) for field in fields(facts) if field.name != "first"}


def step_dict(step: Progress | Outcome) -> dict[str, Any]:
    """How far a job is or how it ended, for programs; no number is infinite."""
    if isinstance(step, Progress):
        left = None if math.isinf(step.left) else step.left
        return {"done": step.done, "total": step.total, "seconds": step.seconds, "left": left}
    known = {
        "rmse": step.rmse,
        "psnr": [None if math.isinf(p) else p for p in step.psnr] if step.psnr else None,
    }
    return {**step_dict(step.progress), "left": 0.0, "stopped": step.stopped, **known}


def cards(found: Sequence[tuple[str, str]]) -> str:
    """Small labelled values side by side."""
    inside = "".join(f"<div><small>{html.escape(a)}</small><b>{html.escape(b)}</b></div>" for a, b in found)
    return f"<div class='cards'>{inside}</div>"


def note(words: str) -> str:
    """A line of explanation."""
    return f"<p class='note'>{html.escape(words)}</p>"


def clock(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


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
