"""The page's text: settings, key figures, sentences and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from spac.report.charts import Charts
from spac.report.figures import Recording, file_name, fixed_hit_rate
from spac.stats.words import end, number, percent, seconds, size

NO_EXPERTS = "This model has no experts that could be split, or ran without the split."


def settings(recording: Recording) -> str:
    """Return the settings of the run as list items."""
    stat = recording.stats.get
    draft = file_name(stat("draft")) or plain(stat("draft_types") or "none")
    longest = f"{stat('governor') or 'fixed'}, at most {number(stat('draft_length'))}"
    options = plain(recording.stats.get("scheduler_options") or "")
    scheduler = (stat("scheduler") or "none") + (f" ({options})" if options else "")
    device = (stat("device") or "cpu") + (", the CPU playing a GPU" if stat("device_is_simulated") else "")
    facts: list[tuple[str, str | None]] = [
        ("draft", draft),
        ("draft length", longest if draft != "none" else None),
        ("device", device),
        ("scheduler", scheduler),
        ("slots", f"{number(stat('slots'))} for {number(stat('n_experts'))} experts"),
        ("CPU threads", number(stat("threads"))),
        ("temperature", number(stat("temp"))),
        ("seed", plain(recording.stats.get("seed"))),
        ("recorded", (recording.content["started"] or "–").replace("T", " ").replace("+00:00", " UTC")),
    ]
    items = (f"<li><b>{name}</b> {escape(fact)}</li>" for name, fact in facts if fact is not None)
    return "\n".join(items)


def cards(recording: Recording) -> str:
    """Return the key figures as terms and descriptions."""
    n, stat = _numbers(recording), recording.stats.get
    tokens = (stat("prompt_tokens") or 0) + (stat("generated_tokens") or 0)
    ended = end(stat("reason") or "", int(tokens), int(stat("context") or 0)) or "not ended"
    shown = [
        ("Speed", n("tokens_per_second"), "tokens/s", f"prompt at {n('prefill_tokens_per_second')} tokens/s"),
        ("Text", n("generated_tokens"), "tokens", f"in {n('steps')} steps, {ended}"),
    ]
    if (steps := recording.total("steps")) < (sequences := recording.total("sequences")):
        tokens_read = f"on average, with prompts of {n('prefilled_tokens')} tokens"
        shown[1] = ("Text", n("generated_tokens"), "tokens", f"in {n('steps')} steps")
        shown.append(("Several", f"{sequences / steps:.1f}", "generations at once", tokens_read))
    else:
        first = seconds(stat("time_to_first_token_s"))
        shown.append(("First token", first, "", f"prompt of {n('prompt_tokens')} tokens"))
    if recording.stats.get("draft_types"):
        of_steps = f"{n('tokens_per_step')} tokens per step"
        shown.append(("Acceptance", percent(stat("acceptance")), "", of_steps))
    if recording.content["experts"] is not None:
        moved = sum(recording.total(f"{way}_bytes") for way in ("upload", "download", "join"))
        swaps = f"{n('uploads')} uploads, {n('evictions')} evictions"
        distinct = f"{percent(stat('hit_rate_distinct'))} of distinct experts"
        host = f"and {seconds(stat('host_compute_s'))} of experts on the CPU"
        on_device = f"{size(stat('slot_bytes'))} on the device"
        shown += [
            ("Hit rate", percent(stat("hit_rate")), "", distinct),
            ("Slots", n("slots_resident"), f"of {n('slots')} in use", on_device),
            ("Moved", size(moved), "", swaps),
            ("Host waits", seconds(stat("host_wait_s")), "", host),
        ]
    return "\n".join(
        f'<div><dt>{name}</dt><dd class="value">{escape(value)} <small>{escape(unit)}</small></dd>'
        f'<dd class="more">{escape(more)}</dd></div>'
        for name, value, unit, more in shown
    )


def _numbers(recording: Recording) -> Any:
    return lambda name: number(recording.stats.get(name))


def of_hits(recording: Recording) -> str:
    """Return a sentence that compares the run's hit rate with that of the best fixed choice."""
    slots, n_expert = recording.stats.get("slots"), recording.stats.get("n_experts")
    best = fixed_hit_rate(recording)
    if not slots or not n_expert or best is None:
        return "No expert was in slots."
    return (
        f"The device held {percent(slots / n_expert)} of the experts and computed "
        f"{percent(recording.stats.get('hit_rate'))} of the activations. The best fixed choice of as many "
        f"experts, known only afterwards, would have computed {percent(best)}."
    )


def of_thresholds(recording: Recording) -> str:
    """Return a sentence that explains the thresholds of the charts; "" without them."""
    thresholds = recording.content["thresholds"]
    if thresholds is None or not thresholds["steps"]:
        return ""
    return (
        f"The scheduler rates the utility of every expert from 0 to {thresholds['levels']}. It wants an "
        "expert on the device if its utility is at least the threshold τ of its layer."
    )


def of_time(charts: Charts) -> str:
    """Return a sentence about the two parts that took most of a step's time."""
    parts = sorted(charts.parts(), key=lambda part: -part.ns.sum())
    total = sum(part.ns.sum() for part in parts) or 1.0
    first, second = parts[:2]
    return (
        f"Most of a step's time went to {first.name} ({percent(first.ns.sum() / total)}: "
        f"{first.explanation}), then to {second.name} ({percent(second.ns.sum() / total)}: "
        f"{second.explanation})."
    )


def of_speculation(recording: Recording) -> str:
    """Return a sentence about drafted and accepted tokens."""
    n = _numbers(recording)
    if not recording.stats.get("draft_types"):
        return "Off: every step decoded one token."
    return (
        f"{n('drafted_tokens')} tokens were drafted and {n('accepted_tokens')} accepted; "
        f"with the target's own, a step made {n('tokens_per_step')} tokens."
    )


def time_table(charts: Charts) -> str:
    """Return a table of the parts of a step's time."""
    parts = charts.parts()
    total = sum(float(part.ns.sum()) for part in parts) or 1.0
    rows = []
    for part in parts:
        took = float(part.ns.sum())
        rows.append((part.name, part.explanation, seconds(took / charts.n_step / 1e9), percent(took / total)))
    rows.append(("A step", "", seconds(total / charts.n_step / 1e9), percent(1)))
    return table(("part", "what it is", "per step", "share"), rows, n_text=2)


def layer_table(recording: Recording) -> str:
    """Return a table of every MoE layer's figures; "" without them."""
    experts = recording.content["experts"]
    if experts is None or not experts["by_layer"]:
        return ""
    by, demand, rows = experts["by_layer"], recording.matrix("demand"), []
    for i, layer in enumerate(experts["layers"]):
        device, host = by["device_activations"][i], by["host_activations"][i]
        hit_rate = percent(device / (device + host) if device + host else None)
        times = (seconds(by[name][i] / 1e9) for name in ("host_ns", "wait_ns"))
        counts = (str(layer["n_expert"]), str(int((demand[i] > 0).sum())), size(layer["expert_bytes"]))
        rows.append((str(i), layer["name"], *counts, hit_rate, *times))
    counted = ("layer", "name", "experts", "ever wanted", "bytes of one")
    return table((*counted, "hit rate", "CPU experts", "host waits"), rows, n_text=2)


def statistics_table(recording: Recording) -> str:
    """Return a table of all of the run's statistics."""
    stats = {name: plain(value) for name, value in recording.stats.items()}
    for name in ("target", "draft"):
        stats[name] = file_name(recording.stats.get(name)) or "–"
    return table(("figure", "value"), stats.items(), n_text=2)


def plain(value: Any) -> str:
    """Return any value of the statistics as text."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {plain(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], n_text: int) -> str:
    """Return a table as HTML; the first `n_text` columns hold text, the others numbers."""
    kinds = ["" if i < n_text else ' class="n"' for i in range(len(head))]
    top = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(head, kinds, strict=True))
    lines = []
    for row in rows:
        cells = [f"<td{kind}>{escape(text)}</td>" for text, kind in zip(row[1:], kinds[1:], strict=True)]
        lines.append(f'<tr><th scope="row">{escape(row[0])}</th>{"".join(cells)}</tr>')
    body = "".join(lines)
    content = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table" tabindex="0" role="region" aria-label="Table">{content}</div>'
