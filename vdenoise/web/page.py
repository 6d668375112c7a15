"""What the app's page is made of, as text: cards, progress bar, style. Nothing is computed here.

Every word that comes from a file or a client goes through ``html.escape``.
"""

from __future__ import annotations

import errno
import html
import math
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from vdenoise.studio.filejob import Outcome, Progress
from vdenoise.studio.preview import Facts, Preview, scores
from vdenoise.web.charts import COLOURS, chart

USE = "Use the example clip"

HEADER = """
<header>
<h1>vdenoise</h1>
<p>Cleans noisy video by a network whose every layer is one step of an optimiser, trained so that the error
falls from each layer to the next: that is <em>layer descent</em>, and the curve shows it on your clip.
<a href="{study}">The study</a></p>
</header>
"""

WAITING = "One video is cleaned at a time; yours begins when those before it are done."

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
.queued .wrap.full svg {display: none}
#source .video-container {height: calc(100% - 36px)}
.queued .pending {opacity: 1 !important; padding-top: 26px}
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
